"""Optimisers with their learning-rate schedule, as components. A new optimiser is a class with `configure`."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common.errors import ConfigError


class Optimizer(typing.Protocol):
    """Makes the optimiser of a training module."""

    def configure(
        self, groups: Sequence[dict[str, Any]], steps: int, progress: Callable[[], float] | None = None
    ) -> Any:
        """Result of `LightningModule.configure_optimizers`, for a run of `steps` optimiser steps.

        Args:
            groups: parameter groups as torch optimisers take them; one may have an `lr` of its own.
            progress: where a run ends by a budget, the share of it that is spent, in [0, 1]; read after every step.
        """
        ...


@dataclass(frozen=True, slots=True)
class AdamW:
    """AdamW with linear warm-up, then linear decay that would reach `floor` times `lr` one step after the last.

    With a budget the rate decays from the first step on, over the share that was spent before each step, and the
    warm-up is a factor of it.

    Raises:
        ConfigError: a setting is out of range.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    warmup_steps: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        inside = all(0 <= beta < 1 for beta in self.betas) and 0 <= self.floor <= 1
        if min(self.lr, self.weight_decay, self.warmup_steps) < 0 or not inside:
            raise ConfigError(f"{self}: lr, weight_decay and warmup_steps must be >= 0, betas and floor in [0, 1]")

    def configure(
        self, groups: Sequence[dict[str, Any]], steps: int, progress: Callable[[], float] | None = None
    ) -> Any:
        weights = [weight for group in groups for weight in group["params"]]
        # PyTorch takes sharded weights one by one unless asked: thousands of kernels a step.
        fused = True if _on_gpu(weights) else None
        optimizer = torch.optim.AdamW([*groups], self.lr, self.betas, weight_decay=self.weight_decay, fused=fused)
        # Else Lightning takes it for one that scales gradients itself, whose gradients it would not clip.
        optimizer._step_supports_amp_scaling = False  # pyright: ignore[reportAttributeAccessIssue]

        def factor(step: int) -> float:
            warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
            if progress is not None:
                return warm * (self.floor + (1 - self.floor) * (1 - progress()))
            left = max(0, steps - step) / max(1, steps - self.warmup_steps)
            return warm if step < self.warmup_steps else self.floor + (1 - self.floor) * left

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _on_gpu(weights: Sequence[torch.Tensor]) -> bool:
    return all(weight.is_cuda for weight in weights)

"""Optimisers with their learning-rate schedule, as components: another one is another class with `configure`."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter

from common.errors import ConfigError


class Optimizer(typing.Protocol):
    """What a training module asks for its optimiser."""

    def configure(self, parameters: Iterable[Parameter], steps: int) -> Any:
        """What `LightningModule.configure_optimizers` returns, for a run of `steps` optimiser steps."""
        ...


@dataclass(frozen=True, slots=True)
class AdamW:
    """AdamW with linear warm-up, then linear decay that would reach `floor` times `lr` one step after the last.

    Raises:
        ConfigError: a setting is out of range.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    warmup_steps: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        inside = all(0 <= one < 1 for one in self.betas) and 0 <= self.floor <= 1
        if min(self.lr, self.weight_decay, self.warmup_steps) < 0 or not inside:
            raise ConfigError(f"{self}: lr, weight_decay and warmup_steps must be >= 0, betas and floor in [0, 1]")

    def configure(self, parameters: Iterable[Parameter], steps: int) -> Any:
        optimizer = torch.optim.AdamW(parameters, self.lr, self.betas, weight_decay=self.weight_decay)

        def factor(step: int) -> float:
            if step < self.warmup_steps:
                return (step + 1) / self.warmup_steps
            left = max(0, steps - step) / max(1, steps - self.warmup_steps)
            return self.floor + (1 - self.floor) * left

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

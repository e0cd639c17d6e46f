"""Notices when a run collapses, and warns or stops it with the reason."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from common.errors import ConfigError, UserError

log = logging.getLogger(__name__)

# What is watched: the metric, whether the limit is the least or the most it may be, and what to do about it.
_WATCHED = {
    "entropy": ("entropy", "least", "the policy is nearly sure of every token: lower the learning rate"),
    "grad_norm": ("grad_norm", "most", "lower the learning rate or set trainer.gradient_clip_val"),
    "format_rate": ("format/valid_rate", "least", "the policy forgets the format: give its reward more weight"),
    "logp_gap": ("logp_gap/mean", "most", "sampling and training disagree on the log-probs: compare their precision"),
    "kl": ("kl", "most", "the policy runs away: lower the learning rate, or raise kl_weight"),
    "zero_spread": ("frac_reward_zero_std", "most", "the samples of a question score alike: nothing left to learn"),
}
_REWARD = "reward"


class GuardError(UserError):
    """A run was stopped because it collapsed."""


class Guard(Callback):
    """Compares what an iteration (an epoch of the Trainer) logged with limits; None switches one off.

    A metric that is beyond its limit, or no number, for `patience` iterations in a row is a reason. A metric that is
    not logged is not watched.

    Args:
        action: warn of each reason once, or stop the run at the first.
        patience: iterations.
        entropy: the least mean entropy of a token, in nats.
        grad_norm: the most that the gradient's norm may be, before clipping.
        format_rate: the least share of steps that follow the format.
        logp_gap: the most that the log-prob of a token may differ, on average, between sampling and training.
        kl: the most divergence from the reference, or from the policy that sampled, in nats a token.
        zero_spread: the most groups whose rewards may be all alike, as a share.
        reward_drop: how far the mean reward may fall below its best, which is a mean over `patience` iterations.

    Raises:
        ConfigError: `patience` is below 1.
        GuardError: at the end of an iteration, where `action` is stop; its checkpoint is not written.
    """

    def __init__(
        self,
        *,
        action: Literal["warn", "stop"] = "warn",
        patience: int = 3,
        entropy: float | None = 0.01,
        grad_norm: float | None = 100.0,
        format_rate: float | None = 0.5,
        logp_gap: float | None = 0.1,
        kl: float | None = 1.0,
        zero_spread: float | None = None,
        reward_drop: float | None = 0.3,
    ) -> None:
        if patience < 1:
            raise ConfigError(f"patience {patience} must be at least 1")
        self.action, self.patience, self.reward_drop = action, patience, reward_drop
        limits = {"entropy": entropy, "grad_norm": grad_norm, "format_rate": format_rate}
        limits |= {"logp_gap": logp_gap, "kl": kl, "zero_spread": zero_spread}
        self.limits = {name: limit for name, limit in limits.items() if limit is not None}
        self._beyond: dict[str, int] = {}  # iterations in a row, by name
        self._told: list[str] = []
        self._rewards: list[float] = []
        self._best: float | None = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, reason in self._reasons(_agreed(trainer)).items():
            told = f"iteration {trainer.current_epoch}: {reason}"
            if self.action == "stop":
                raise GuardError(f"guard stopped the run at {told} (callbacks.<guard>.{name})")
            if name not in self._told:
                self._told.append(name)
                if trainer.is_global_zero:
                    log.warning("guard: %s", told)

    def state_dict(self) -> dict[str, Any]:
        return {"beyond": self._beyond, "told": self._told, "rewards": self._rewards, "best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._beyond, self._told = dict(state_dict["beyond"]), list(state_dict["told"])
        self._rewards, self._best = list(state_dict["rewards"]), state_dict["best"]

    def _reasons(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """What is beyond its limit for long enough, by name of the setting."""
        reasons: dict[str, str] = {}
        for name, limit in self.limits.items():
            metric, bound, advice = _WATCHED[name]
            value = metrics.get(metric)
            if value is None:
                continue
            inside = value >= limit if bound == "least" else value <= limit  # NaN is neither
            if self._counted(name, not inside):
                side = "below" if bound == "least" else "above"
                reasons[name] = f"{metric} is {value:.4g}, {side} {limit:g}{self._while()}; {advice}"
        reward = metrics.get(_REWARD)
        if self.reward_drop is not None and reward is not None:
            fallen = self._best is not None and not reward >= self._best - self.reward_drop
            if self._counted("reward_drop", fallen):
                reasons["reward_drop"] = (
                    f"reward is {reward:.4g} after {self._best:.4g} at its best{self._while()}; lower the learning rate"
                )
            self._remember(reward)
        return reasons

    def _counted(self, name: str, beyond: bool) -> bool:
        """Count iterations in a row; whether they are enough."""
        self._beyond[name] = self._beyond.get(name, 0) + 1 if beyond else 0
        return self._beyond[name] >= self.patience

    def _remember(self, reward: float) -> None:
        self._rewards = [*self._rewards, reward][-self.patience :]
        mean = math.fsum(self._rewards) / self.patience
        if len(self._rewards) == self.patience and mean > (-math.inf if self._best is None else self._best):
            self._best = mean

    def _while(self) -> str:
        return f" for {self.patience} iterations" if self.patience > 1 else ""


def _agreed(trainer: Trainer) -> dict[str, float]:
    """The watched metrics, averaged over the ranks, so that all of them decide alike."""
    watched = [metric for metric, _, _ in _WATCHED.values()] + [_REWARD]
    names = [name for name in watched if name in trainer.callback_metrics]
    values = torch.tensor([float(trainer.callback_metrics[name]) for name in names], dtype=torch.float64)
    if trainer.world_size > 1:
        values = trainer.strategy.reduce(values.to(trainer.strategy.root_device), reduce_op="mean")
    return dict(zip(names, values.tolist(), strict=True))

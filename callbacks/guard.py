"""Warns of a run that collapses, or stops it, with the reason."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from common.errors import ConfigError, UserError

log = logging.getLogger(__name__)

# By setting: the metric, whether the limit is a minimum or a maximum, and what to do about it.
_WATCHED = {
    "entropy": ("entropy", "min", "the policy is nearly sure of every token: lower the learning rate"),
    "grad_norm": ("grad_norm", "max", "lower the learning rate or set trainer.gradient_clip_val"),
    "format_rate": ("format/valid_rate", "min", "the policy forgets the format: give its reward more weight"),
    "logp_gap": ("logp_gap/mean", "max", "sampling and training disagree on the log-probs: compare their precision"),
    "kl": ("kl", "max", "the policy drifts away: lower the learning rate, or raise kl_weight"),
    "zero_spread": (
        "frac_reward_zero_std",
        "max",
        "the episodes of most groups have equal rewards: nothing is left to learn",
    ),
}
_TOKEN_MEANS = ("entropy", "logp_gap", "kl")  # NaN where no token was trained on
_REWARD = "reward"


class GuardError(UserError):
    """A run was stopped because it collapsed."""


class Guard(Callback):
    """Compares the metrics of an iteration (an epoch of the Trainer) with limits; None switches a limit off.

    The guard acts on a metric that is beyond its limit, or NaN, for `patience` iterations in a row. A metric that is
    not logged is not checked, nor is the NaN mean over tokens of an iteration that trained on none (its gradient is
    finite).

    Args:
        action: warn once for each limit, or stop the run at the first.
        patience: iterations.
        entropy: minimum of the mean entropy of a token, in nats.
        grad_norm: maximum of the gradient's norm before clipping.
        format_rate: minimum share of valid steps.
        logp_gap: maximum of the mean difference of a token's log-prob between sampling and training.
        kl: maximum divergence from the reference, or from the policy that sampled, in nats a token.
        zero_spread: maximum share of groups whose rewards are all equal.
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
        self._warned: list[str] = []
        self._rewards: list[float] = []
        self._best: float | None = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, reason in self._reasons(_mean_over_ranks(trainer)).items():
            message = f"iteration {trainer.current_epoch}: {reason}"
            if self.action == "stop":
                raise GuardError(f"guard stopped the run at {message} (callbacks.<guard>.{name})")
            if name not in self._warned:
                self._warned.append(name)
                if trainer.is_global_zero:
                    log.warning("guard: %s", message)

    @property
    def state_key(self) -> str:
        """Holds the settings, because a run may have several guards: some that warn, one that stops."""
        return self._generate_state_key(
            action=self.action, patience=self.patience, reward_drop=self.reward_drop, **self.limits
        )

    def state_dict(self) -> dict[str, Any]:
        return {"beyond": self._beyond, "warned": self._warned, "rewards": self._rewards, "best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._beyond, self._warned = dict(state_dict["beyond"]), list(state_dict["warned"])
        self._rewards, self._best = list(state_dict["rewards"]), state_dict["best"]

    def _reasons(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Reasons for which the guard acts, by name of the setting."""
        reasons: dict[str, str] = {}
        for name, limit in self.limits.items():
            metric, bound, advice = _WATCHED[name]
            value = metrics.get(metric)
            of_no_token = name in _TOKEN_MEANS and math.isfinite(metrics.get("grad_norm", math.nan))
            if value is None or (math.isnan(value) and of_no_token):
                continue
            inside = value >= limit if bound == "min" else value <= limit  # False for NaN
            if self._counted(name, not inside):
                side = "below" if bound == "min" else "above"
                reasons[name] = f"{metric} is {value:.4g}, {side} {limit:g}{self._duration()}; {advice}"
        reward = metrics.get(_REWARD)
        if self.reward_drop is not None and reward is not None:
            fallen = self._best is not None and not reward >= self._best - self.reward_drop
            if self._counted("reward_drop", fallen):
                reasons["reward_drop"] = (
                    f"reward is {reward:.4g}, its best was {self._best:.4g}{self._duration()}; lower the learning rate"
                )
            self._remember(reward)
        return reasons

    def _counted(self, name: str, beyond: bool) -> bool:
        """Count iterations in a row; true once there are `patience` of them."""
        self._beyond[name] = self._beyond.get(name, 0) + 1 if beyond else 0
        return self._beyond[name] >= self.patience

    def _remember(self, reward: float) -> None:
        self._rewards = [*self._rewards, reward][-self.patience :]
        mean = math.fsum(self._rewards) / self.patience
        if len(self._rewards) == self.patience and mean > (-math.inf if self._best is None else self._best):
            self._best = mean

    def _duration(self) -> str:
        return f" for {self.patience} iterations" if self.patience > 1 else ""


def _mean_over_ranks(trainer: Trainer) -> dict[str, float]:
    """The checked metrics, averaged over the ranks, so that all ranks decide alike."""
    watched = [metric for metric, _, _ in _WATCHED.values()] + [_REWARD]
    names = [name for name in watched if name in trainer.callback_metrics]
    values = torch.tensor([float(trainer.callback_metrics[name]) for name in names], dtype=torch.float64)
    if trainer.world_size > 1:
        values = trainer.strategy.reduce(values.to(trainer.strategy.root_device), reduce_op="mean")
    return dict(zip(names, values.tolist(), strict=True))

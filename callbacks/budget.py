"""A budget of tokens for reinforcement learning: it ends the run, and the learning rate decays over it."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.rollout import RolloutCallback, rollout_of
from common.costs import tokens_in
from common.errors import ConfigError
from modules.training import BaseTraining

log = logging.getLogger(__name__)


class TokenBudget(Callback):
    """Ends a run with the iteration in which its policies have sampled `max_tokens`, of all ranks and agents together.

    Counted is what is sampled for training: the turns of the rollout and what rewards ask the policy, not the learning
    curve. Iterations are whole, so the last one goes beyond the budget by less than what it samples. `max_epochs` stays
    an upper bound. The learning rate decays over the budget instead of over steps. The count is the rollout's and lies
    in its checkpoint, so a resumed run ends where an unbroken one does.

    Args:
        max_tokens: the budget.

    Raises:
        ConfigError: `max_tokens` is below 1; on setting up, there is no rollout; at the end of an iteration, the
            rollout's sampler has counted nothing.
    """

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 1:
            raise ConfigError(f"max_tokens {max_tokens} must be at least 1")
        self.max_tokens = max_tokens
        self._rollout: RolloutCallback | None = None

    @property
    def spent(self) -> int:
        """Tokens sampled so far."""
        return 0 if self._rollout is None else tokens_in(self._rollout.counts)

    def progress(self) -> float:
        """The share of the budget that is spent, in [0, 1]."""
        return min(1.0, self.spent / self.max_tokens)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._rollout = rollout_of(trainer)
        if self._rollout is None or not isinstance(pl_module, BaseTraining):
            raise ConfigError("TokenBudget needs a callbacks.rollout:RolloutCallback beside it")
        pl_module.progress = self.progress

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_when_spent(trainer)  # a run that was killed after its last iteration

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Earlier, Lightning would break the iteration off; later, other callbacks would not see that it is the last.
        if trainer.is_last_batch:
            if self._rollout is not None and not self.spent:
                kind = type(self._rollout.sampler).__name__
                raise ConfigError(f"max_tokens needs a sampler that counts its tokens in `counts`: {kind} does not")
            self._stop_when_spent(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.spent < self.max_tokens and trainer.is_global_zero:
            log.warning(
                "max_epochs %s ended the run with %d of max_tokens %d sampled: raise it to spend the budget",
                trainer.max_epochs,
                self.spent,
                self.max_tokens,
            )

    def _stop_when_spent(self, trainer: Trainer) -> None:
        if self.spent >= self.max_tokens:
            trainer.should_stop = True

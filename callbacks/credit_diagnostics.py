"""Diagnostics of credit in a run with an oracle: the credit of each event, and how much of a gradient is signal."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from callbacks.over_ranks import means, summed
from callbacks.rollout import Iteration, rollout_of
from callbacks.scored_groups import evaluating
from common.answers import exact_match
from common.errors import ConfigError
from envs.interfaces import Oracle
from envs.packing import collate
from evaluation.credit_events import event_advantages, gradient_signal, within_groups
from modules.episode_tensors import step_lengths
from modules.functional.advantages import group_normalize
from modules.policy import Policy
from modules.policy_gradient import PolicyGradient
from modules.sequence_logprobs import logprobs_and_entropy
from modules.training_rows import token_advantages, training_rows

_ROWS = 16  # of one backward pass


class CreditDiagnostics(Callback):
    """Logs, before an iteration is trained on, what its credit would teach; training stays the same to the bit.

    Args:
        oracle: knows the truth of every step.
        gradients: every so many iterations gradients are compared, which costs about as much as an update; 0: never.
            Credit of tokens is averaged over each step. Weights may not be sharded, and groups have several episodes:
            paths of a tree are not independent halves.

    Raises:
        ConfigError: `gradients` is negative; on setting up, there is no rollout, or gradients of several agents are
            asked for.
    """

    def __init__(self, oracle: Oracle, *, gradients: int = 10) -> None:
        if gradients < 0:
            raise ConfigError(f"CreditDiagnostics: gradients {gradients} must be 0 or more")
        self.oracle, self.gradients = oracle, gradients

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if rollout_of(trainer) is None:
            raise ConfigError("CreditDiagnostics needs a callbacks.rollout:RolloutCallback beside it")
        if self.gradients and not isinstance(getattr(pl_module, "policy", None), Policy):
            raise ConfigError("CreditDiagnostics looks at the gradients of one policy: give gradients: 0")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        rollout = rollout_of(trainer)
        if batch_idx or rollout is None or rollout.latest is None or not isinstance(pl_module, PolicyGradient):
            return
        latest = rollout.latest
        mask_BS = latest.scores.step_mask_BS
        values = means(event_advantages(latest.episodes, latest.advantages_BS, mask_BS, self.oracle))
        right_B = torch.tensor([float(exact_match(one.answer, one.question.answers)) for one in latest.episodes])
        right_B = right_B.masked_fill(latest.scores.outcome_B.isnan(), math.nan)
        sums = summed(within_groups(latest.scores.step_BS, mask_BS, right_B, latest.group_size)).tolist()
        values["credit/reward_outcome_correlation"] = sums[0] / math.sqrt(sums[1] * sums[2] or math.nan)
        if self.gradients and trainer.current_epoch % self.gradients == 0:
            values |= gradient_signal(*self._gradients(pl_module, latest, right_B))
        known = {tag: value for tag, value in values.items() if math.isfinite(value)}
        for logger in trainer.loggers:
            logger.log_metrics(known, step=trainer.global_step)

    def _gradients(self, module: PolicyGradient, latest: Iteration, right_B: Tensor) -> tuple[Tensor, Tensor]:
        """`[2, P]` from the credit of two halves of the questions, `[P]` from the outcome of all; of all ranks."""
        lengths_BS = step_lengths(latest.episodes, latest.advantages_BS.shape[1])
        outcome_B1 = group_normalize(right_B, latest.group_size)[:, None]
        channels = {
            "advantages": token_advantages(latest.advantages_BS, lengths_BS),
            "returns": token_advantages(outcome_B1 * latest.scores.step_mask_BS, lengths_BS),  # as if they were credit
        }
        kept = latest.scores.outcome_B.isfinite().tolist()
        rows = training_rows(latest.episodes, kept, channels)
        weights = [one for one in module.model.parameters() if one.requires_grad]
        halves_2P, outcome_P = torch.zeros(2, sum(map(torch.numel, weights))), torch.zeros(1)
        with evaluating(module):
            for half in (0, 1):
                places = [b for b in range(len(rows)) if b // latest.group_size % 2 == half]
                own = [row for b in places for row in rows[b]]
                for start in range(0, len(own), _ROWS):
                    batch = move_data_to_device(collate(own[start : start + _ROWS]), module.device)
                    logps_BT, _ = logprobs_and_entropy(module.model, batch, module.temperature)
                    credit, other = ((batch.channels[name] * logps_BT).sum() for name in ("advantages", "returns"))
                    credit_P = _gradient(credit, weights, retain_graph=True)
                    other_P = _gradient(other, weights)
                    halves_2P[half] += credit_P
                    outcome_P = outcome_P + other_P
        return summed(halves_2P), summed(outcome_P.expand(halves_2P.shape[1]))


def _gradient(total: Tensor, weights: list[Tensor], *, retain_graph: bool = False) -> Tensor:
    """`[P]`, on the CPU."""
    gradients = torch.autograd.grad(total, weights, retain_graph=retain_graph, materialize_grads=True)
    return torch.cat([one.float().cpu().flatten() for one in gradients])

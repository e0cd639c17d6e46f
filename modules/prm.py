"""Fitting a process reward model on pairs of steps (ProRAG Eq 4)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from common.errors import ConfigError
from envs.score_positions import PairBatch
from modules.functional.losses import pairwise_ranking_loss
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.reward_model.calibration import platt
from modules.reward_model.model import ReadAt
from modules.reward_model.training import RewardTraining


class PRM(RewardTraining):
    """Trains a policy with a scalar head to score the better of two steps higher, on `datamodules.pair_data:PairData`.

    The scores are calibrated with even odds of the better and the worse steps of pairs.

    Args:
        policy: the backbone: an SFT checkpoint, or any later policy.
        optimizer: how it is trained.
        read_at: as in `RewardTraining`.
        features: as in `RewardTraining`.
        pointwise: weight of a logistic loss of each side alone, with the better step as positive and the worse one as
            negative; 0 leaves it out, as the paper does. Siblings share their history, so the part of a score that
            depends on the history alone cancels in a pair. This loss makes scores of different histories comparable.
            It needs a judge that pairs valid steps with invalid ones, not just better with worse.

    Raises:
        ConfigError: `pointwise` is negative or not finite.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        read_at: ReadAt = "observation",
        features: bool = False,
        pointwise: float = 0.0,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if not 0 <= pointwise < math.inf:
            raise ConfigError(f"pointwise {pointwise}: the weight of a loss must be 0 or more")
        reading: dict[str, Any] = {"read_at": read_at, "features": features, "trains_zero": pointwise != 0}
        training: dict[str, Any] = {"lora": lora, "gradient_checkpointing": gradient_checkpointing}
        super().__init__(policy, optimizer, **reading, **training)
        self.pointwise = pointwise

    def training_step(self, batch: PairBatch, index: int) -> Tensor:
        chosen_N, rejected_N = self._scores(batch)
        mean = pairwise_ranking_loss(chosen_N, rejected_N)
        if self.pointwise:
            zero_N = torch.zeros_like(chosen_N)
            alone = pairwise_ranking_loss(chosen_N, zero_N) + pairwise_ranking_loss(zero_N, rejected_N)
            mean = mean + self.pointwise * alone / 2
        self.log_means({"accuracy": (chosen_N > rejected_N).sum()}, len(batch))
        return self.mean_loss(mean * len(batch), mean.new_tensor(len(batch)))

    def scored(self, batch: PairBatch) -> Tensor:
        """`[N, 3]`: number of each pair, score of its better and of its worse step."""
        return torch.stack([batch.number_N.double(), *(scores.double() for scores in self._scores(batch))], dim=-1)

    def features_of(self, batch: PairBatch) -> Tensor:
        """Of each pair three rows, weighted as in the loss: how its sides differ, the better side, the worse side."""
        design_PD, number_N = self.design(batch.sequences).double(), batch.number_N.double()
        better_ND, worse_ND = design_PD[batch.chosen_N], design_PD[batch.rejected_N]
        rows: list[Tensor] = []
        for place, (target, weight, design_ND) in enumerate(
            (
                (1.0, 1.0, better_ND - worse_ND),
                (1.0, self.pointwise / 2, better_ND),
                (0.0, self.pointwise / 2, worse_ND),
            )
        ):
            columns = (3 * number_N + place, torch.full_like(number_N, target), torch.full_like(number_N, weight))
            rows.append(torch.cat([torch.stack(columns, dim=-1), design_ND], dim=-1))
        return torch.cat(rows)

    def calibration(self, rows_NC: Tensor) -> tuple[float, float]:
        return platt(rows_NC[:, 1], rows_NC[:, 2])

    def measure(self, rows_NC: Tensor) -> dict[str, Tensor]:
        _, chosen_N, rejected_N = rows_NC.T
        accuracy = (chosen_N > rejected_N).float().mean()
        return {"val_loss": pairwise_ranking_loss(chosen_N, rejected_N), "prm/pair_accuracy": accuracy}

    def _scores(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        raw_P = self.reward_model.raw_scores(batch.sequences)
        return raw_P[batch.chosen_N], raw_P[batch.rejected_N]

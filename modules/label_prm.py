"""Training of a process reward model on labelled steps, each judged independently."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from common.errors import ConfigError
from envs.labelled_steps import LabelBatch
from modules.functional.label_losses import group_pairs, label_loss
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.reward_model.calibration import platt_of_labels
from modules.reward_model.model import ReadAt
from modules.reward_model.training import RewardTraining

_MOST_STEPS = 10**7  # of a fit: a pair of steps has one number


class LabelPRM(RewardTraining):
    """Trains a policy with a scalar head to say how right a step is, on `datamodules.label_data:LabelData`.

    The loss is `modules.functional.label_losses.label_loss`, divided by the labelled steps of an optimiser step. The
    scores are calibrated with the odds of right steps among the held-out ones. `accuracy` is the share of steps whose
    score is on the right side of zero.

    Args:
        policy: the backbone: an SFT checkpoint, or any later policy.
        optimizer: how it is trained.
        read_at: as in `RewardTraining`.
        features: as in `RewardTraining`.
        pointwise: weight of the likelihood of each label.
        ranking: weight of the ranking loss of steps of one question and one kind, whatever their histories.
        min_gap: of the labels of two steps that are ranked.

    Raises:
        ConfigError: a weight or the gap is out of range.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        read_at: ReadAt = "observation",
        features: bool = False,
        pointwise: float = 1.0,
        ranking: float = 1.0,
        min_gap: float = 0.5,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        weights = pointwise, ranking
        if not all(0 <= weight < math.inf for weight in weights) or not sum(weights) or not 0 < min_gap <= 1:
            raise ConfigError(
                f"pointwise {pointwise}, ranking {ranking}, min_gap {min_gap}: weights must be 0 or more, one of them "
                "above 0, and min_gap in (0, 1]"
            )
        reading: dict[str, Any] = {"read_at": read_at, "features": features, "trains_zero": pointwise != 0}
        training: dict[str, Any] = {"lora": lora, "gradient_checkpointing": gradient_checkpointing}
        super().__init__(policy, optimizer, **reading, **training)
        self.pointwise, self.ranking, self.min_gap = pointwise, ranking, min_gap

    def training_step(self, batch: LabelBatch, index: int) -> Tensor:
        scores_P = self.reward_model.raw_scores(batch.sequences)
        if self.pointwise:  # else zero means nothing
            self.log_means({"accuracy": ((scores_P > 0) == (batch.label_P > 0.5)).sum()}, len(batch))
        total = self._loss(scores_P, batch.label_P, batch.group_P)
        return self.mean_loss(total, total.new_tensor(len(batch)))

    def scored(self, batch: LabelBatch) -> Tensor:
        """`[P, 4]`: number of each step, its score, its label and its group."""
        columns = (batch.number_P, self.reward_model.raw_scores(batch.sequences), batch.label_P, batch.group_P)
        return torch.stack([column.double() for column in columns], dim=-1)

    def features_of(self, batch: LabelBatch) -> Tensor:
        """As the loss has them: each step, and by how much the better of two of a group differs from the worse."""
        number_P, label_P = batch.number_P.double(), batch.label_P.double()
        design_PD = self.design(batch.sequences).double()
        alone_P3 = torch.stack([number_P, label_P, torch.full_like(label_P, self.pointwise)], dim=-1)
        better_N, worse_N, weight_N = group_pairs(batch.label_P, batch.group_P, min_gap=self.min_gap)
        pair_N = _MOST_STEPS * (1 + number_P[better_N]) + number_P[worse_N]
        pairs_N3 = torch.stack([pair_N, torch.ones_like(pair_N), self.ranking * weight_N.double()], dim=-1)
        rows = [(alone_P3, design_PD), (pairs_N3, design_PD[better_N] - design_PD[worse_N])]
        return torch.cat([torch.cat(columns, dim=-1) for columns in rows])

    def calibration(self, rows_NC: Tensor) -> tuple[float, float]:
        return platt_of_labels(rows_NC[:, 1], rows_NC[:, 2])

    def measure(self, rows_NC: Tensor) -> dict[str, Tensor]:
        _, scores_P, labels_P, groups_P = rows_NC.T
        better_N, worse_N, _ = group_pairs(labels_P, groups_P.long(), min_gap=self.min_gap)
        accuracy = (scores_P[better_N] > scores_P[worse_N]).float().mean()
        loss = self._loss(scores_P, labels_P, groups_P.long()) / len(scores_P)
        return {"val_loss": loss, "prm/pair_accuracy": accuracy}

    def _loss(self, scores_P: Tensor, labels_P: Tensor, groups_P: Tensor) -> Tensor:
        """The sum over P labelled steps."""
        settings = {"pointwise": self.pointwise, "ranking": self.ranking, "min_gap": self.min_gap}
        return label_loss(scores_P, labels_P, groups_P, **settings)

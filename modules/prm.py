"""Fitting a process reward model on pairs of steps (ProRAG Eq 4)."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from common.errors import ConfigError
from envs.score_positions import PairBatch
from modules.calibration import platt
from modules.functional.losses import pairwise_ranking_loss
from modules.held_out import each_once
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.reward_model import ReadAt, freeze_unused_output, untrained_reward_model
from modules.sharding import full_state, whole
from modules.training import Training

log = logging.getLogger(__name__)


class PRM(Training):
    """Trains a policy with a scalar head to score the better of two steps higher.

    After fitting, the scores are calibrated on the held-out pairs (on the training pairs where none are held out): a
    ranking loss leaves zero and scale of the scores free.

    Args:
        policy: the backbone, an SFT checkpoint.
        optimizer: how it is trained.
        read_at: the score position of a step: the last token of its observation, or its last policy token (`action`).
        logp_weight: initial weight of the mean log-probability that the backbone gives to the step's tokens; 0 leaves
            it out, as the paper does.
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
        logp_weight: float = 0.0,
        pointwise: float = 0.0,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if not 0 <= pointwise < math.inf:
            raise ConfigError(f"pointwise {pointwise}: the weight of a loss must be 0 or more")
        super().__init__(policy, optimizer, lora=lora, gradient_checkpointing=gradient_checkpointing)
        self.reward_model = untrained_reward_model(policy, read_at=read_at, logp_weight=logp_weight)
        self.head, self.pointwise = self.reward_model.head, pointwise
        self.head.zero.requires_grad_(pointwise != 0)
        if not self.head.uses_logps:
            freeze_unused_output(policy)
        self._held_out: list[Tensor] = []

    def training_step(self, batch: PairBatch, index: int) -> Tensor:
        chosen_N, rejected_N = self._scores(batch)
        mean = pairwise_ranking_loss(chosen_N, rejected_N)
        if self.pointwise:
            zero_N = torch.zeros_like(chosen_N)
            alone = pairwise_ranking_loss(chosen_N, zero_N) + pairwise_ranking_loss(zero_N, rejected_N)
            mean = mean + self.pointwise * alone / 2
        right = (chosen_N > rejected_N).float().mean()
        self.log("accuracy", right, batch_size=len(batch), on_step=False, on_epoch=True, sync_dist=True)
        return self.mean_loss(mean * len(batch), mean.new_tensor(len(batch)))

    def validation_step(self, batch: PairBatch, index: int) -> None:
        self._held_out.append(self._compared(batch))

    def on_validation_epoch_end(self) -> None:
        _, chosen_N, rejected_N = self._gathered(self._held_out)
        self._held_out = []
        self.log("val_loss", pairwise_ranking_loss(chosen_N, rejected_N))
        self.log("prm/pair_accuracy", (chosen_N > rejected_N).float().mean())

    def export(self, folder: Path) -> None:
        """Calibrate and write the reward model to `folder/model`; called on every rank, written by rank 0."""
        self._calibrate()
        state, head = full_state(self.model), full_state(self.head)
        if state:
            self.reward_model.with_weights(whole(self.model, state), head).save(folder / "model")

    def _calibrate(self) -> None:
        data = cast(Any, self.trainer).datamodule
        batches = data.val_dataloader() if data.held_out else data.train_dataloader()
        if not data.held_out:
            log.warning("no pairs are held out: the scores are calibrated on training pairs and will be overconfident")
        device = self.trainer.strategy.root_device
        self.to(device).eval()
        with torch.inference_mode():
            compared = [self._compared(move_data_to_device(batch, device)) for batch in batches]
        _, chosen_N, rejected_N = self._gathered(compared)
        self.reward_model.scale, self.reward_model.offset = platt(chosen_N.cpu(), rejected_N.cpu())

    def _scores(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        raw_P = self.reward_model.raw_scores(batch.sequences)
        return raw_P[batch.chosen_N], raw_P[batch.rejected_N]

    def _compared(self, batch: PairBatch) -> Tensor:
        """`[N, 3]`: number of each pair, score of its better and of its worse step."""
        return torch.stack([batch.number_N.double(), *(scores.double() for scores in self._scores(batch))], dim=-1)

    def _gathered(self, compared: list[Tensor]) -> Tensor:
        """The columns of all ranks' rows by number of the pair, each pair once (the last batch repeats some)."""
        return each_once(cast(Tensor, self.all_gather(torch.cat(compared))).reshape(-1, 3)).T

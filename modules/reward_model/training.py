"""Fitting a process reward model: what is the same whatever its loss, from the head to the calibration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from envs.score_positions import ScoreBatch
from modules.gathered_rows import each_once
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.reward_model.features import FeatureWeights
from modules.reward_model.model import ReadAt, freeze_unused_output, untrained_reward_model
from modules.sharding import full_state, whole
from modules.training import Training, TrainingError

log = logging.getLogger(__name__)


class RewardTraining(Training):
    """Trains a policy with a scalar head to score steps; a subclass has the loss, and calibrates the scores.

    A loss may leave zero and scale of the scores free, and a score in use is compared with both. So after fitting they
    are calibrated, on the held-out part of the data, or on the training data where nothing is held out.

    Args:
        policy: the backbone: an SFT checkpoint, or any later policy.
        optimizer: how it is trained.
        read_at: where a step's score is read: at the last token of its observation, or at its last policy token
            (`action`).
        features: whether the score reads `modules.reward_model.features.FEATURES` too. Before the first update their
            weights are fitted by logistic regression on the training data, so training begins where they end and adds
            what the backbone can tell beyond them. Without them the score begins at 0, as in the paper.
        trains_zero: whether the loss says where the zero of a score is.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        read_at: ReadAt,
        features: bool,
        trains_zero: bool,
        lora: LoRA | None,
        gradient_checkpointing: bool,
    ) -> None:
        super().__init__(policy, optimizer, lora=lora, gradient_checkpointing=gradient_checkpointing)
        self.reward_model = untrained_reward_model(policy, read_at=read_at)
        self.head = self.reward_model.head
        self.head.zero.requires_grad_(trains_zero)
        self.features = features
        if not features:
            freeze_unused_output(policy)
        self._held_out: list[Tensor] = []

    def setup(self, stage: str) -> None:
        if self.features and self.head.features is None:
            self.head.features = FeatureWeights(cast(Any, self.trainer).datamodule.kinds())

    def on_train_start(self) -> None:
        """Fit the weights of the features; a resumed run has them in its checkpoint."""
        if self.head.features is None or self.global_step:
            return
        rows_NC = self._rows(self.features_of, cast(Any, self.trainer).datamodule.train_dataloader()).cpu()
        if not rows_NC.isfinite().all():
            raise TrainingError("a log-probability of a step is not finite: the policy to begin with is broken")
        weights = self.head.features.fitted(rows_NC[:, 3:], rows_NC[:, 1], rows_NC[:, 2])
        self.head.features.weight_KF.copy_(weights)
        self.train()

    def scored(self, batch: Any) -> Tensor:
        """The rows that measures and calibration read, `[N, C]` float64; the first column numbers them."""
        raise NotImplementedError

    def features_of(self, batch: Any) -> Tensor:
        """Rows for fitting the weights of features, `[N, 3 + D]`: number, target, weight, a row of their design."""
        raise NotImplementedError

    def design(self, batch: ScoreBatch) -> Tensor:
        """`[P, D]`: the design of the features of the steps of a batch."""
        _, features_PF = self.reward_model.states(batch)
        return cast(FeatureWeights, self.head.features).design(cast(Tensor, features_PF), batch.kinds)

    def calibration(self, rows_NC: Tensor) -> tuple[float, float]:
        """Scale and offset of the scores."""
        raise NotImplementedError

    def measure(self, rows_NC: Tensor) -> dict[str, Tensor]:
        """Metrics of the held-out rows."""
        raise NotImplementedError

    def validation_step(self, batch: Any, index: int) -> None:
        self._held_out.append(self.scored(batch))

    def on_validation_epoch_end(self) -> None:
        rows_NC = self._gathered(self._held_out)
        self._held_out = []
        self.log_dict(self.measure(rows_NC))

    def export(self, folder: Path) -> None:
        """Calibrate and write the reward model to `folder/model`; called on every rank, written by rank 0."""
        self._calibrate()
        state, head = full_state(self.model), full_state(self.head)
        if state:
            self.reward_model.with_weights(whole(self.model, state), head).save(folder / "model")

    def _calibrate(self) -> None:
        data = cast(Any, self.trainer).datamodule
        # Unshuffled: what shares a batch would depend on the epoch, which a run killed after its last step counts anew.
        batches = data.batches(data.held_out or data.train, shuffle=False)
        if not data.held_out:
            log.warning("no questions are held out: scores are calibrated on training data and will be overconfident")
        self.reward_model.scale, self.reward_model.offset = self.calibration(self._rows(self.scored, batches).cpu())

    def _rows(self, rows_of: Callable[[Any], Tensor], batches: Iterable[Any]) -> Tensor:
        """The rows of all ranks' batches, each once, without gradients; leaves the module in evaluation mode."""
        device = self.trainer.strategy.root_device
        self.to(device).eval()
        with (
            torch.no_grad()
        ):  # not in inference mode: sharded parameters are gathered into buffers that training reuses
            return self._gathered([rows_of(move_data_to_device(batch, device)) for batch in batches])

    def _gathered(self, rows: list[Tensor]) -> Tensor:
        """All ranks' rows by number, each once (the last batch repeats some)."""
        mine_NC = torch.cat(rows)
        if self.trainer.world_size == 1:
            return each_once(mine_NC)
        count = torch.tensor(len(mine_NC), device=mine_NC.device)
        most = int(cast(Tensor, self.all_gather(count)).max())
        filled_NC = torch.cat([mine_NC, mine_NC[:1].expand(most - len(mine_NC), -1)])  # ranks may have unequally many
        return each_once(cast(Tensor, self.all_gather(filled_NC)).reshape(-1, mine_NC.shape[1]))

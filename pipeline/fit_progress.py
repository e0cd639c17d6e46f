"""Progress of a fit: its epochs, their batches, and validation."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from common.progress import current, progress_bar


class FitProgress(Callback):
    """Reports a fit's progress; the first of its callbacks: an epoch may begin with a rollout and end with a curve."""

    def __init__(self) -> None:
        self._batches: tqdm[Any] | None = None
        self._validation: tqdm[Any] | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        current().begin_unit("epoch", trainer.current_epoch, max(trainer.max_epochs or 0, 0))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._batches is None:
            self._batches = progress_bar(_size(trainer.num_training_batches), "batches", "batch")
            self._batches.update(batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._batches is not None:
            self._batches.update()
        spent = getattr(pl_module, "progress", None)  # the share of a budget
        if spent is not None:
            current().reach(spent())
        if trainer.max_steps > 0:
            current().reach(trainer.global_step / trainer.max_steps)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches = None
        current().end_unit()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation = progress_bar(_size(sum(trainer.num_val_batches)), "validation", "batch")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._validation is not None:
            self._validation.update()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._validation is not None:
            self._validation.close()
        self._validation = None


def _size(batches: float) -> int | None:
    return int(batches) if math.isfinite(batches) else None

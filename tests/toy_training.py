"""A module that learns the slope of a line, for tests of fitting; a callback that breaks a run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from common.errors import DataError


class Line(LightningDataModule):
    """Eight points on y = 2x, always in one order."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def train_dataloader(self) -> DataLoader[Any]:
        x = torch.arange(8, dtype=torch.float32).unsqueeze(1) / 8
        return DataLoader(TensorDataset(x, 2 * x), batch_size=2)


class Slope(LightningModule):
    """Learns a slope; Adam's state matters to a resumed run."""

    def __init__(self, lr: float = 0.1, start: Path | None = None) -> None:
        super().__init__()
        self.lr, self.layer = lr, torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    def export(self, folder: Path) -> None:
        (folder / "model").mkdir(exist_ok=True)
        torch.save(self.state_dict(), folder / "model" / "weights.pt")


class FailOnRank(Callback):
    """Raises on one rank at the start of an epoch, while the others train on."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_rank == self.rank:
            raise DataError("questions.jsonl:7: no answer")


class SignalOnce(Callback):
    """Sends a signal to its own process at the start of an epoch, once; writes the epochs begun beside the flag."""

    def __init__(self, flag: str, number: int = signal.SIGKILL, epoch: int = 2) -> None:
        self.flag, self.number, self.epoch = flag, number, epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with open(f"{self.flag}.epochs", "a") as f:
            f.write(f"{trainer.current_epoch} ")
        if trainer.current_epoch == self.epoch and not os.path.exists(self.flag):
            Path(self.flag).touch()
            os.kill(os.getpid(), self.number)

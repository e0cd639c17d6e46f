"""Modules that learn the slope of a line, one with two losses, for tests of fitting; callbacks that break a run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from common.errors import DataError
from datamodules.batches import Batches, accumulate
from modules.optimizer import AdamW
from modules.policy import Policy
from modules.training import Loss, Training


def quiet_trainer(**settings: Any) -> Trainer:
    """A Trainer on the CPU that writes and shows nothing unless it is asked to."""
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return Trainer(**{"accelerator": "cpu", **dict.fromkeys(off, False)} | settings)


class Line(LightningDataModule):
    """Eight points on y = 2x, always in one order; an optimiser step takes `accumulate` batches of two."""

    def __init__(self, seed: int = 0, accumulate: int = 1) -> None:
        super().__init__()
        self.seed, self.accumulate = seed, accumulate

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        self.trainer.accumulate_grad_batches = self.accumulate

    def train_dataloader(self) -> DataLoader[Any]:
        x = torch.arange(8, dtype=torch.float32).unsqueeze(1) / 8
        return DataLoader(TensorDataset(x, 2 * x), batch_size=2)


class Slope(LightningModule):
    """Learns a slope, with two hidden layers if wanted; Adam's state matters to a resumed run."""

    def __init__(self, lr: float = 0.1, start: Path | None = None, hidden: int = 0) -> None:
        super().__init__()
        self.lr, self.layer = lr, torch.nn.Linear(1, 1)
        if hidden:  # the output layer has its gradient first, and is listed first
            self.layer = torch.nn.Linear(hidden, 1)
            self.hidden = torch.nn.Sequential(
                torch.nn.Linear(1, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, hidden), torch.nn.Tanh()
            )

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x = self.hidden(batch[0]) if hasattr(self, "hidden") else batch[0]
        loss = torch.nn.functional.mse_loss(self.layer(x), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    def export(self, folder: Path) -> None:
        (folder / "model").mkdir(exist_ok=True)
        torch.save(self.state_dict(), folder / "model" / "weights.pt")


class Rows(LightningDataModule):
    """Eight rows `(x, tokens)` of an optimiser step each epoch, in batches of `micro_batch` of all ranks."""

    def __init__(self, micro_batch: int = 8) -> None:
        super().__init__()
        self.micro_batch = micro_batch

    def setup(self, stage: str) -> None:
        accumulate(self.trainer, 8, self.micro_batch)

    def train_dataloader(self) -> Batches[tuple[float, int], torch.Tensor]:
        rows = [(0.1 + i / 8, 1 + i % 4) for i in range(8)]
        return Batches.of(self.trainer, rows, torch.tensor, batch_size=self.micro_batch, seed=0)


class ActorCritic(Training):
    """Two losses: the actor's is a mean over tokens, the critic's a mean over rows.

    `folder` gets the gradients of every optimiser step as the optimiser has them: divided by their counts, clipped.
    """

    def __init__(self, folder: str, *, critic_lr: float | None = None, critic_clip: float | None = None) -> None:
        torch.manual_seed(0)
        actor: Any = torch.nn.Linear(1, 2)
        super().__init__(Policy(actor, tokenizer=None), AdamW(1e-2, floor=1.0))  # pyright: ignore[reportArgumentType]
        self.folder, self.critic = Path(folder), torch.nn.Linear(1, 1)
        self.critic_lr, self.critic_clip = critic_lr, critic_clip

    def losses(self) -> dict[str, Loss]:
        return {"policy": Loss((self.model,)), "value": Loss((self.critic,), self.critic_lr, self.critic_clip)}

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        x_B1, tokens_B = batch[:, :1], batch[:, 1]
        actor = -(tokens_B * torch.log_softmax(self.model(x_B1), dim=-1)[:, 0]).sum()
        critic = ((self.critic(x_B1) - 2 * x_B1) ** 2).sum()
        return self.mean_losses({"policy": (actor, tokens_B.sum()), "value": (critic, torch.tensor(len(batch)))})

    def configure_gradient_clipping(self, *arguments: Any, **settings: Any) -> None:
        super().configure_gradient_clipping(*arguments, **settings)
        gradients = {name: parameter.grad for name, parameter in self.named_parameters()}
        torch.save(gradients, self.folder / f"{self.global_step}-{self.global_rank}.pt")

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


class Answered(Callback):
    """Logs what policies answer on held-out questions; the second is the best."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log("eval/toy/dev/em", [0.1, 0.9, 0.2][trainer.current_epoch])


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

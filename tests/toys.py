"""Small components for the tests of configuration and stages: a maker, a module that learns, pieces to nest."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from envs.errors import ConfigError, DataError
from envs.files import atomic_write


@dataclass(frozen=True)
class Limits:
    """A dataclass argument: built from a plain map."""

    steps: int = 3
    tokens: int = 8


class Piece:
    """A nested component."""

    def __init__(self, name: str, other: Any = None, scale: float = 1.0) -> None:
        if scale < 0:
            raise ConfigError("scale must not be negative")
        self.name, self.other, self.scale = name, other, scale


class Holder:
    """A component with arguments of every kind."""

    def __init__(
        self,
        piece: Piece,
        *,
        count: int = 1,
        mode: Literal["fast", "slow"] = "fast",
        corpus: Path | None = None,
        limits: Limits | None = None,
        hook: Callable[[int], int] | None = None,
        more: Sequence[Any] = (),
        rewards: dict[str, Any] | None = None,
        pair: tuple[int, ...] = (),
    ) -> None:
        self.piece, self.count, self.mode, self.corpus, self.limits = piece, count, mode, corpus, limits
        self.hook, self.more, self.rewards, self.pair = hook, more, rewards, pair


class Open:
    """Takes anything."""

    def __init__(self, first: int = 0, **rest: Any) -> None:
        self.first, self.rest = first, rest


def reward(episodes: list[int], context: int, *, weight: float = 1.0) -> list[float]:
    """Lacks two arguments in a config, so it is bound."""
    return [weight * (episode + context) for episode in episodes]


class Numbers:
    """A maker: each rank writes `rank-<r>.jsonl`; `merge` joins them in rank order and adds the source's numbers."""

    def __init__(self, count: int, source: Path | None = None, fails_on: int | None = None, bug: bool = False) -> None:
        self.count, self.source, self.fails_on, self.bug = count, source, fails_on, bug

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        if rank == self.fails_on:
            raise ValueError("a bug") if self.bug else DataError("numbers.txt:3: not a number")
        share = [seed + number for number in range(self.count) if number % world_size == rank]
        with atomic_write(folder / "data" / f"rank-{rank}.jsonl") as f:
            f.writelines(f"{json.dumps(number)}\n" for number in share)

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        lines = [(folder / "data" / f"rank-{rank}.jsonl").read_text() for rank in range(world_size)]
        if self.source is not None:
            lines.append((self.source / "data" / "all.jsonl").read_text())
        with atomic_write(folder / "data" / "all.jsonl") as f:
            f.write("".join(lines))
        return {"numbers": float("".join(lines).count("\n"))}


class Line(LightningDataModule):
    """Eight points on y = 2x, always in one order."""

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


class SignalOnce(Callback):
    """Sends a signal to its own process at the start of an epoch, once."""

    def __init__(self, flag: str, number: int = signal.SIGKILL, epoch: int = 2) -> None:
        self.flag, self.number, self.epoch = flag, number, epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == self.epoch and not os.path.exists(self.flag):
            Path(self.flag).touch()
            os.kill(os.getpid(), self.number)

"""Fit a stage's module on its data with the Lightning Trainer, from its last checkpoint where a killed run left one."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.model_helpers import is_overridden

from common.errors import ConfigError
from common.files import atomic_write
from pipeline.schema import Experiment, TrainerSettings

_FILLING: Any = torch.utils.deterministic  # its flag `fill_uninitialized_memory` has no annotation


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target, syncs it and renames it, so that a killed save leaves the old one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save one checkpoint; `storage_options` is for other stores than a file system."""
        with atomic_write(path, "wb") as f:
            torch.save(checkpoint, f)


class _LeaveAtOnce(Callback):
    """Ends the process on SIGTERM, without a word: the next run redoes the unit of work that was under way.

    Lightning's own handler waits for the end of a batch, which may be a rollout away, and lets its ranks wait for
    each other; an exception would have callbacks save a module that is half-way through a step.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


class _Logged(Callback):
    """Keeps in each checkpoint what was logged last: a run killed after its last epoch logs nothing when it goes on."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["logged"] = self.update(trainer)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.metrics = checkpoint.get("logged", {})

    def update(self, trainer: Trainer) -> dict[str, float]:
        """All that was logged, each measure as it was last."""
        self.metrics |= {name: float(value) for name, value in trainer.callback_metrics.items()}
        return dict(self.metrics)


def fit(
    module: LightningModule,
    data: LightningDataModule,
    callbacks: Sequence[Callback],
    *,
    trainer: TrainerSettings,
    strategy: Any,
    experiment: Experiment,
    folder: Path,
    events: Path,
) -> dict[str, float]:
    """Fit and export; returns the metrics that were logged last.

    The last weights are exported, or, where a ModelCheckpoint has a `monitor`, those that it found best on the held-out
    part of the data, and the metrics are theirs. Checkpoints go to `folder/checkpoints`, TensorBoard events to
    `events`; `module.export(folder)`, where there is one, is called on every rank at the end, for sharded weights have
    to be gathered: the module lets one rank write.

    Raises:
        ConfigError: checkpoints were asked for that would never be written, or would not do to go on from.
    """
    _quieten()
    # The last checkpoint remembers which was the best, so the best is saved before it.
    callbacks = sorted(callbacks, key=lambda callback: not getattr(callback, "monitor", None))
    checkpoints = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    _refuse_lost(checkpoints)
    _refuse_blind(checkpoints, module)
    for callback in checkpoints:
        _refuse_idle(callback)
        callback.dirpath = callback.dirpath or str(folder / "checkpoints")
    logged = _Logged()
    last = folder / "checkpoints" / "last.ckpt"
    handler = signal.getsignal(signal.SIGTERM)
    with _torch_flags_of_a_fit():
        runner = _trainer([*callbacks, logged, _LeaveAtOnce()], trainer, strategy, experiment, folder, events)
        runner.fit(module, datamodule=data, ckpt_path=last if last.exists() else None)
        metrics = logged.update(runner)
        if best := next((callback.best_model_path for callback in checkpoints if callback.monitor), ""):
            runner.validate(module, datamodule=data, ckpt_path=best, verbose=False)
            metrics |= {name: float(value) for name, value in runner.callback_metrics.items()}
    signal.signal(signal.SIGTERM, handler)
    export = getattr(module, "export", None)
    if export is not None:
        export(folder)
    return metrics


@contextmanager
def _torch_flags_of_a_fit() -> Iterator[None]:
    """Keep to the fit what the Trainer's `deterministic` and `benchmark` set for the whole process.

    Deterministic mode also fills all memory that torch allocates, to show reads of what was never written: a search for
    bugs that makes decoding several times slower, and is off.
    """
    mode, workspace = torch.get_deterministic_debug_mode(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    benchmark, fill = torch.backends.cudnn.benchmark, _FILLING.fill_uninitialized_memory
    _FILLING.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.benchmark, _FILLING.fill_uninitialized_memory = benchmark, fill
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
        if workspace is not None:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace


def _trainer(
    callbacks: Sequence[Callback],
    settings: TrainerSettings,
    strategy: Any,
    experiment: Experiment,
    folder: Path,
    events: Path,
) -> Trainer:
    on_terminal = sys.stdout.isatty()
    try:
        return Trainer(
            **asdict(settings) | {"strategy": strategy},
            accelerator=experiment.accelerator,
            devices=experiment.devices,
            num_nodes=experiment.num_nodes,
            default_root_dir=folder,
            logger=TensorBoardLogger(events.parent, name=events.name, version="", default_hp_metric=False),
            callbacks=[*callbacks],
            plugins=[AtomicCheckpointIO()],
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            enable_progress_bar=on_terminal or any(isinstance(callback, ProgressBar) for callback in callbacks),
            enable_model_summary=False,
        )
    except (MisconfigurationException, ValueError) as error:  # Lightning's words for a setting it cannot follow
        raise ConfigError(f"accelerator or trainer: {' '.join(str(error).split())}") from error


def _refuse_idle(callback: ModelCheckpoint) -> None:
    """Lightning keeps a last checkpoint only where it keeps a best one: without, an epoch's end saves nothing."""
    if callback.save_top_k == 0 and not callback._every_n_train_steps:
        raise ConfigError(
            "a ModelCheckpoint with save_top_k: 0 saves nothing before the end, so a killed run would start over: "
            "give it filename: last and enable_version_counter: false instead"
        )


def _refuse_blind(checkpoints: Sequence[ModelCheckpoint], module: LightningModule) -> None:
    """The best weights are read back, and validated, by Lightning itself."""
    for callback in checkpoints:
        if callback.monitor and not is_overridden("validation_step", module):
            kind = type(module).__name__
            raise ConfigError(
                f"a ModelCheckpoint with monitor: {callback.monitor} needs held-out data, which {kind} has none of: "
                "its last weights are exported"
            )


def _refuse_lost(checkpoints: Sequence[ModelCheckpoint]) -> None:
    """With a monitor Lightning saves its last checkpoint only where it is also the best."""
    best = [callback for callback in checkpoints if callback.monitor]
    if best and (len(best) == len(checkpoints) or best[0].filename == "last"):
        raise ConfigError(
            f"a ModelCheckpoint with monitor: {best[0].monitor} keeps the best weights, and a killed run goes on from "
            "the last ones: give it filename: best, and a second ModelCheckpoint filename: last and no monitor"
        )
    last = [one for one in checkpoints if one.save_last or (one.filename == "last" and not one._enable_version_counter)]
    if checkpoints and not any(one.dirpath is None for one in last):
        raise ConfigError(
            "no ModelCheckpoint keeps checkpoints/last.ckpt, from which a killed run goes on: "
            "give one filename: last, enable_version_counter: false and no dirpath"
        )


def _quieten() -> None:
    """Lightning tells its hardware, its tips and its guesses about loaders at every fit."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated")
    warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")  # nothing to validate on
    warnings.filterwarnings("ignore", message="torch.distributed.nn.functional.all_gather is deprecated")  # its own use
    warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")

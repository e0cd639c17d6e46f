"""Fit a stage's module on its data with the Lightning Trainer, from `last.ckpt` where a killed run has left it."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from common.costs import UPDATES, costs_in, counted
from common.errors import ConfigError
from common.precision import chosen_precision
from pipeline.checkpoints import AtomicCheckpointIO, for_this_module, read_checkpoint
from pipeline.fit_progress import FitProgress
from pipeline.schema import Experiment, TrainerSettings

log = logging.getLogger(__name__)
_FILLING: Any = torch.utils.deterministic  # its flag `fill_uninitialized_memory` has no annotation


class _SavedBefore(Callback):
    """Keeps a resumed run from saving the step that it resumes from again: by then it may be within the next step."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback._every_n_train_steps and trainer.global_step:
                callback._last_global_step_saved = trainer.global_step


class _LastMetrics(Callback):
    """Keeps the last logged metrics in each checkpoint: a run killed after its last epoch logs nothing on resuming."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["logged"] = self.update(trainer)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.metrics = checkpoint.get("logged", {})

    def update(self, trainer: Trainer) -> dict[str, float]:
        """The last value of every metric that was logged."""
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
    loggers: Sequence[Logger] = (),
) -> dict[str, float]:
    """Fit and export; returns the last logged value of every metric, and what module, data and callbacks counted.

    The last weights are exported. Where a ModelCheckpoint has a `monitor`, the best weights by that metric on held-out
    data are exported in their place, and the metrics are those of the best weights. Checkpoints go
    to `folder/checkpoints`, TensorBoard events to `events`, and what is logged also to `loggers`.
    `module.export(folder)`, if the module has it, is called on every rank at the end, for sharded weights have to be
    gathered; the module lets one rank write.

    Raises:
        ConfigError: a ModelCheckpoint would never save, or a killed run could not resume from what it saves.
    """
    _silence_lightning()
    # last.ckpt records which checkpoint is the best, so the best is saved before it.
    callbacks = sorted(callbacks, key=lambda callback: not getattr(callback, "monitor", None))
    checkpoints = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    _require_last_checkpoint(checkpoints)
    _require_held_out_data(checkpoints, module)
    for callback in checkpoints:
        _require_saving(callback)
        if trainer.check_val_every_n_epoch != 1 and not callback.monitor and not callback._every_n_train_steps:
            callback._save_on_train_epoch_end = True  # else after validation alone, of which there may be none
        callback.dirpath = callback.dirpath or str(folder / "checkpoints")
    logged = _LastMetrics()
    last = folder / "checkpoints" / "last.ckpt"
    with _torch_flags_of_a_fit():
        runner = _trainer(
            [FitProgress(), *callbacks, logged, _SavedBefore()],
            trainer,
            strategy,
            experiment,
            folder,
            [TensorBoardLogger(events.parent, name=events.name, version="", default_hp_metric=False), *loggers],
        )
        with for_this_module(last):
            runner.fit(module, datamodule=data, ckpt_path=last if last.exists() else None)
        metrics = logged.update(runner)
        costs = costs_in(counted(module, data, *callbacks)) | {UPDATES: runner.global_step}
        for callback in checkpoints:
            if callback.monitor:
                metrics |= _best(runner, module, data, callback)
    export = getattr(module, "export", None)
    if export is not None:
        export(folder)
    return metrics | costs


def _best(
    runner: Trainer, module: LightningModule, data: LightningDataModule, callback: ModelCheckpoint
) -> dict[str, float]:
    """Read the best weights back; returns their metrics. In reinforcement learning these were logged with them."""
    path = callback.best_model_path
    if not path:
        log.warning("monitor %s was never logged: the last weights are exported", callback.monitor)
        return {}
    if is_overridden("validation_step", module):
        runner.validate(module, datamodule=data, ckpt_path=path, verbose=False)
        return {name: float(value) for name, value in runner.callback_metrics.items()}
    # By mmap: the state of the optimiser, which is in it too, is not read.
    checkpoint = read_checkpoint(
        Path(path), lambda: torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    )
    options = StateDictOptions(full_state_dict=True, strict=False)  # of adapters nothing else was saved
    set_model_state_dict(module, checkpoint["state_dict"], options=options)
    return checkpoint["logged"]


@contextmanager
def _torch_flags_of_a_fit() -> Iterator[None]:
    """Restore after a fit the flags that the Trainer's `deterministic` and `benchmark` set for the whole process.

    Deterministic mode also fills every tensor that torch allocates, to make reads of uninitialised memory visible. That
    debugging aid makes decoding slower and is switched off.
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
    loggers: list[Logger],
) -> Trainer:
    on_gpu = experiment.accelerator != "cpu" and torch.cuda.is_available()
    try:
        runner = Trainer(
            **asdict(settings)
            | {
                "strategy": _same_buckets(strategy, experiment.world_size),
                "precision": chosen_precision(settings.precision, torch.device("cuda" if on_gpu else "cpu")),
            },
            accelerator=experiment.accelerator,
            devices=experiment.devices,
            num_nodes=experiment.num_nodes,
            default_root_dir=folder,
            logger=loggers,
            callbacks=[*callbacks],
            plugins=[AtomicCheckpointIO(), _cluster()],
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
            enable_model_summary=False,
        )
    except (MisconfigurationException, ValueError) as error:  # what Lightning raises for a wrong setting
        raise ConfigError(f"accelerator or trainer: {' '.join(str(error).split())}") from error
    # Lightning's handler of SIGTERM waits for the end of the batch, which may be a whole rollout away, and for other
    # ranks; an exception would let callbacks save a module in the middle of a step. Ours ends the process at once.
    runner._signal_connector.register_signal_handlers = lambda: None
    return runner


def _cluster() -> ClusterEnvironment:
    """The processes are those that `pipeline.launcher` joined: not what SLURM, LSF or MPI say of a whole job."""
    return TorchElasticEnvironment() if TorchElasticEnvironment.detect() else LightningEnvironment()


def _same_buckets(strategy: Any, ranks: int) -> Any:
    """DDP whose gradients are added up in one order in every step, so that a resumed run repeats them to the bit.

    It makes new buckets after its first step, by the order in which gradients came, unless it looks for parameters
    without one; and from three ranks on the sum of a gradient depends on its place in a bucket. (PyTorch warns once
    that it found none.)
    """
    return "ddp_find_unused_parameters_true" if ranks > 2 and strategy in ("auto", "ddp") else strategy


def _require_saving(callback: ModelCheckpoint) -> None:
    """With `save_top_k: 0` Lightning saves nothing at the end of an epoch, the last checkpoint included."""
    if callback.save_top_k == 0 and not callback._every_n_train_steps:
        raise ConfigError(
            "a ModelCheckpoint with save_top_k: 0 saves nothing before the end, so a killed run would start over: "
            "give it filename: last and enable_version_counter: false instead"
        )


def _require_held_out_data(checkpoints: Sequence[ModelCheckpoint], module: LightningModule) -> None:
    """The best epoch is chosen by a validation step or, in reinforcement learning, by answers to held-out questions."""
    for callback in checkpoints:
        known = is_overridden("validation_step", module) or (callback.monitor or "").startswith("eval/")
        if callback.monitor and not known:
            raise ConfigError(
                f"a ModelCheckpoint with monitor: {callback.monitor} needs a validation_step, which "
                f"{type(module).__name__} does not have: monitor what callbacks.validation:Validation logs, such as "
                "eval/world/dev/em, or leave the monitor out, and the last weights are exported"
            )


def _require_last_checkpoint(checkpoints: Sequence[ModelCheckpoint]) -> None:
    """With a monitor Lightning saves its last checkpoint only in epochs that are also the best so far."""
    best = [callback for callback in checkpoints if callback.monitor]
    if best and (len(best) == len(checkpoints) or best[0].filename == "last"):
        raise ConfigError(
            f"a ModelCheckpoint with monitor: {best[0].monitor} keeps the best weights, and a killed run resumes from "
            "the last ones: give it filename: best, and a second ModelCheckpoint filename: last and no monitor"
        )
    last = [each for each in checkpoints if each.save_last or _is_named_last(each)]
    if checkpoints and not any(each.dirpath is None for each in last):
        raise ConfigError(
            "no ModelCheckpoint keeps checkpoints/last.ckpt, from which a killed run resumes: "
            "give one filename: last, enable_version_counter: false and no dirpath"
        )


def _is_named_last(callback: ModelCheckpoint) -> bool:
    return callback.filename == "last" and not callback._enable_version_counter


def _silence_lightning() -> None:
    """Lightning logs the hardware, tips and guesses about data loaders at every fit."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated")
    warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")  # nothing to validate on
    warnings.filterwarnings(
        "ignore", message="torch.distributed.nn.functional.all_gather is deprecated"
    )  # Lightning calls it
    warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
    warnings.filterwarnings("ignore", message=".*ModelCheckpoint.monitor='eval/.* could not find the monitored key")

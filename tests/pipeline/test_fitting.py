"""Fitting: checkpoints that are whole, in the stage's folder; the same weights from the same seed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from common.errors import ConfigError
from pipeline.fitting import AtomicCheckpointIO, fit
from pipeline.schema import Experiment, TrainerSettings
from tests.toy_training import ActorCritic, Answered, Line, Rows, Slope

LAST = {"filename": "last", "enable_version_counter": False}
BEST = {"filename": "best", "enable_version_counter": False, "monitor": "val_loss"}


def fitted(
    folder: Path, seed: int = 1, checkpoint: ModelCheckpoint | None = None, **trainer: Any
) -> dict[str, torch.Tensor]:
    seed_everything(seed, verbose=False)
    module = Slope()
    fit(
        module,
        Line(),
        [checkpoint or ModelCheckpoint(save_last=True)],
        trainer=TrainerSettings(**{"max_epochs": 2} | trainer),
        strategy="auto",
        experiment=Experiment("toy", {}, accelerator="cpu"),
        folder=folder,
        events=folder / "tensorboard" / "fit" / "0123",
    )
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_everything_lands_in_its_folder_and_same_seed_gives_same_weights(tmp_path: Path) -> None:
    weights = fitted(tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a" / "checkpoints").iterdir()) == [
        "epoch=1-step=8.ckpt",
        "last.ckpt",
    ]
    assert list((tmp_path / "a" / "tensorboard" / "fit" / "0123").glob("events.*"))
    exported = torch.load(tmp_path / "a" / "model" / "weights.pt")
    again, other = fitted(tmp_path / "b"), fitted(tmp_path / "c", seed=2)
    assert all(
        torch.equal(exported[name], value) and torch.equal(again[name], value) for name, value in weights.items()
    )
    assert any(not torch.equal(other[name], value) for name, value in weights.items())


def flags() -> tuple[Any, ...]:
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill: Any = torch.utils.deterministic
    return (
        *deterministic,
        fill.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


@pytest.mark.parametrize("setting", [None, "warn"])
@pytest.mark.parametrize("fails", [False, True])
def test_deterministic_algorithms_are_on_during_the_fit_alone(
    tmp_path: Path, setting: str | None, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    during = []

    class Watch(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            during.append(flags())
            if fails:
                raise RuntimeError("mid-fit")

    before = flags()
    with pytest.raises(RuntimeError, match="mid-fit") if fails else nullcontext():
        best_of_three(tmp_path, Watch(), **({} if setting is None else {"deterministic": setting}))
    assert during == [(True, setting == "warn", False, False, ":4096:8")]
    assert flags() == before == (False, False, True, False, None)


def test_one_checkpoint_is_replaced_after_every_epoch(tmp_path: Path) -> None:
    fitted(tmp_path, checkpoint=ModelCheckpoint(filename="last", enable_version_counter=False))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["last.ckpt"]
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 8


def test_checkpoints_that_would_not_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="saves nothing before the end"):
        fitted(tmp_path, checkpoint=ModelCheckpoint(save_top_k=0, save_last=True))


def test_without_validation_a_checkpoint_is_saved_all_the_same(tmp_path: Path) -> None:
    """Lightning would save after a validation that comes every second epoch, and there is nothing to validate."""
    fitted(tmp_path, checkpoint=ModelCheckpoint(**LAST), check_val_every_n_epoch=2)
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 8


class BreaksOff(Callback):
    """Raises at the start of the third epoch, where the checkpoint of the second step is the last."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 2:
            raise RuntimeError("broken off")


def test_a_run_that_saves_after_some_steps_of_several_batches_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    def run(folder: Path, *callbacks: Callback) -> bytes:
        (folder / "gradients").mkdir(parents=True, exist_ok=True)
        fit(
            ActorCritic(str(folder / "gradients")),
            Rows(micro_batch=4),
            [ModelCheckpoint(**LAST, every_n_train_steps=2), *callbacks],
            trainer=TrainerSettings(max_epochs=4),
            strategy="auto",
            experiment=Experiment("toy", {}, accelerator="cpu"),
            folder=folder,
            events=folder / "tensorboard",
        )
        return (folder / "model" / "weights.pt").read_bytes()

    with pytest.raises(RuntimeError, match="broken off"):
        run(tmp_path / "broken", BreaksOff())
    assert run(tmp_path / "broken") == run(tmp_path / "whole")


class Validated(Rows):
    def val_dataloader(self) -> list[torch.Tensor]:
        return [torch.ones(1, 2)]


class Checked(ActorCritic):
    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val_loss", batch.sum())


@pytest.mark.parametrize(("interval", "whole"), [(3, False), (8, True)])
def test_a_checkpoint_within_an_optimiser_step_is_refused(tmp_path: Path, interval: int, whole: bool) -> None:
    """A step takes eight batches."""
    settings = {"max_epochs": 2, "val_check_interval": interval}
    run: dict[str, Any] = {
        "trainer": TrainerSettings(**settings), "strategy": "auto", "folder": tmp_path,
        "experiment": Experiment("toy", {}, accelerator="cpu"), "events": tmp_path / "tensorboard" / "fit" / "0123",
    }  # fmt: skip
    with nullcontext() if whole else pytest.raises(ConfigError, match="val_check_interval must be a whole number of"):
        fit(Checked(str(tmp_path)), Validated(1), [ModelCheckpoint(**LAST)], **run)


class HeldOut(Line):
    def val_dataloader(self) -> DataLoader[Any]:
        return self.train_dataloader()


class Wavering(Slope):
    """Is best after its second epoch, or says so; notes the weights of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("age", torch.tensor(0))
        self.age: torch.Tensor
        self.epochs: list[float] = []

    def on_train_epoch_start(self) -> None:
        self.age += 1

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", [0.4, 0.3, 0.1, 0.2][int(self.age)])

    def on_train_epoch_end(self) -> None:
        self.epochs.append(self.layer.weight.item())


def best_of_three(
    folder: Path,
    *more: Callback,
    checkpoints: Sequence[dict[str, Any]] = (LAST, BEST),
    module: Wavering | None = None,
    strategy: str = "auto",
    **trainer: Any,
) -> tuple[Wavering, dict[str, Any]]:
    seed_everything(1, verbose=False)
    module = module or Wavering()
    metrics = fit(
        module,
        HeldOut(),
        [*(ModelCheckpoint(**settings) for settings in checkpoints), *more],
        trainer=TrainerSettings(**{"max_epochs": 3} | trainer),
        strategy=strategy,
        experiment=Experiment("toy", {}, accelerator="cpu"),
        folder=folder,
        events=folder / "tensorboard" / "fit" / "0123",
    )
    return module, metrics


def test_where_a_checkpoint_has_a_monitor_the_best_weights_are_exported(tmp_path: Path) -> None:
    module, metrics = best_of_three(tmp_path)
    exported = torch.load(tmp_path / "model" / "weights.pt")["layer.weight"].item()
    assert exported == module.epochs[1] != module.epochs[2]
    assert metrics["val_loss"] == pytest.approx(0.1)
    assert "loss" in metrics


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_run_that_was_broken_off_goes_on_from_its_last_and_exports_the_same_best(epoch: int, tmp_path: Path) -> None:
    class Broken(Exception):
        pass

    class Break(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.current_epoch == epoch:
                raise Broken

    _, logged = best_of_three(tmp_path / "whole")
    with pytest.raises(Broken):
        best_of_three(tmp_path / "broken", Break())
    for left in (3 - epoch, 0):  # at last only the export
        module, metrics = best_of_three(tmp_path / "broken")
        assert len(module.epochs) == left
        assert metrics == logged
        one, other = (torch.load(tmp_path / name / "model" / "weights.pt") for name in ("whole", "broken"))
        assert torch.equal(one["layer.weight"], other["layer.weight"])


@pytest.mark.parametrize("checkpoints", [[BEST], [BEST | {"save_last": True}], [BEST | {"filename": "last"}, LAST]])
def test_a_best_checkpoint_without_a_last_one_is_refused(checkpoints: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a second ModelCheckpoint filename: last and no monitor"):
        best_of_three(tmp_path, checkpoints=checkpoints)


@pytest.mark.parametrize("settings", [{}, {"filename": "last"}, LAST | {"dirpath": "elsewhere"}])
def test_checkpoints_that_a_killed_run_would_not_find_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no ModelCheckpoint keeps checkpoints/last\.ckpt"):
        best_of_three(tmp_path, checkpoints=[settings])


def test_a_monitor_without_held_out_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="monitor: val_loss needs a validation_step, which Blind does not have: mon"):
        best_of_three(tmp_path, module=Blind())


class Blind(Wavering):
    validation_step = LightningModule.validation_step


EVALUATED = BEST | {"monitor": "eval/toy/dev/em", "mode": "max"}


def test_without_a_validation_step_the_best_policy_by_its_answers_is_exported(tmp_path: Path) -> None:
    module, metrics = best_of_three(tmp_path, Answered(), checkpoints=(LAST, EVALUATED), module=Blind())
    exported = torch.load(tmp_path / "model" / "weights.pt")["layer.weight"].item()
    assert exported == module.epochs[1] != module.epochs[2]
    assert metrics["eval/toy/dev/em"] == pytest.approx(0.9)
    again, repeated = best_of_three(tmp_path, Answered(), checkpoints=(LAST, EVALUATED), module=Blind())
    assert (again.epochs, repeated) == ([], metrics), "killed after its last epoch"
    assert torch.load(tmp_path / "model" / "weights.pt")["layer.weight"].item() == exported


def test_a_monitor_that_nobody_logs_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module, _ = best_of_three(tmp_path, checkpoints=(LAST, EVALUATED), module=Blind())
    assert torch.load(tmp_path / "model" / "weights.pt")["layer.weight"].item() == module.epochs[2]
    assert "monitor eval/toy/dev/em was never logged: the last weights are exported" in caplog.text


@pytest.mark.parametrize("setting", [{"precision": "foo"}, {"strategy": "foo"}, {"max_epochs": -3}])
def test_a_setting_that_lightning_refuses_is_one_line(setting: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^accelerator or trainer: .*(foo|-3)") as caught:
        best_of_three(tmp_path, **setting)
    assert "\n" not in str(caught.value)


def test_a_failed_save_leaves_the_old_checkpoint_and_nothing_beside_it(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "last.ckpt"
    saver = AtomicCheckpointIO()
    saver.save_checkpoint({"step": 1}, target)

    def half(checkpoint: object, f) -> None:
        f.write(b"half a checkpoint")
        raise OSError("disk full")

    monkeypatch.setattr("pipeline.fitting.torch.save", half)
    with pytest.raises(OSError, match="disk full"):
        saver.save_checkpoint({"step": 2}, target)
    assert torch.load(target) == {"step": 1}
    assert list(tmp_path.iterdir()) == [target]

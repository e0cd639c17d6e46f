"""Fitting: checkpoints that are whole, in the stage's folder; the same weights from the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from configs.fit import AtomicCheckpointIO, fit
from configs.schema import Experiment, TrainerSettings
from envs.errors import ConfigError
from tests.toy_training import Line, Slope


def fitted(folder: Path, seed: int = 1, checkpoint: ModelCheckpoint | None = None) -> dict[str, torch.Tensor]:
    seed_everything(seed, verbose=False)
    module = Slope()
    fit(
        module,
        Line(),
        [checkpoint or ModelCheckpoint(save_last=True)],
        trainer=TrainerSettings(max_epochs=2),
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


def test_one_checkpoint_is_replaced_after_every_epoch(tmp_path: Path) -> None:
    fitted(tmp_path, checkpoint=ModelCheckpoint(filename="last", enable_version_counter=False))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["last.ckpt"]
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 8


def test_checkpoints_that_would_not_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="saves nothing before the end"):
        fitted(tmp_path, checkpoint=ModelCheckpoint(save_top_k=0, save_last=True))


def test_a_failed_save_leaves_the_old_checkpoint_and_nothing_beside_it(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "last.ckpt"
    saver = AtomicCheckpointIO()
    saver.save_checkpoint({"step": 1}, target)

    def half(checkpoint: object, f) -> None:
        f.write(b"half a checkpoint")
        raise OSError("disk full")

    monkeypatch.setattr("configs.fit.torch.save", half)
    with pytest.raises(OSError, match="disk full"):
        saver.save_checkpoint({"step": 2}, target)
    assert torch.load(target) == {"step": 1}
    assert list(tmp_path.iterdir()) == [target]

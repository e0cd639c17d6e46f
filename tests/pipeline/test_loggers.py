"""Loggers beside TensorBoard's: what reaches them, what they are called, and that no stage depends on them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from pipeline.loader import load
from pipeline.loggers import check_loggers
from pipeline.plan import Plan
from tests.toy_runs import NUMBERS, config, run

CSV = {"csv": {"target": "lightning.pytorch.loggers:CSVLogger", "flush_logs_every_n_steps": 1}}
WANDB = {"wandb": {"target": "lightning.pytorch.loggers:WandbLogger", "project": "toys", "offline": True}}
EVALUATION = {"target": "tests.toys:Results"}


def experiment(folder: Path, loggers: dict[str, Any]) -> Path:
    last = {"target": "lightning.pytorch.callbacks:ModelCheckpoint", "save_last": True}
    fit = {
        "module": {"target": "tests.toy_training:Slope"},
        "data": {"target": "tests.toy_training:Line"},
        "callbacks": {"checkpoints": last},
        "trainer": {"max_epochs": 2},
    }
    return config(
        folder, {"make": {"data": NUMBERS | {"count": 3}}, "fit": fit, "eval": {"data": EVALUATION}}, loggers=loggers
    )


def rows(folder: Path, run: str, version: int = 0) -> list[dict[str, str]]:
    path = folder / "runs/toy/seed0/loggers/toy/seed0" / run / f"version_{version}" / "metrics.csv"
    with path.open() as file:
        return list(csv.DictReader(file))


def test_no_fingerprint_depends_on_loggers(tmp_path: Path) -> None:
    path = experiment(tmp_path, CSV)
    with_, without = (Plan.of(load(path, overrides)) for overrides in ([], ["loggers.csv=null"]))
    assert without.experiment.loggers == {}
    assert [stage.fingerprint for stage in with_.stages.values()] == [
        stage.fingerprint for stage in without.stages.values()
    ]


def test_tags_makers_and_the_final_table_reach_a_logger(tmp_path: Path) -> None:
    assert run(experiment(tmp_path, CSV)) == 0
    assert rows(tmp_path, "make") == [{"numbers": "3.0", "step": "0"}]
    assert [float(row["step"]) for row in rows(tmp_path, "fit") if row["loss"]] == [0, 1, 2, 3, 4, 5, 6, 7]
    [summary] = rows(tmp_path, "summary")
    assert {name: float(summary[name]) for name in ("eval/toys/test/em", "eval/toys/test/n")} == {
        "eval/toys/test/em": 0.5,
        "eval/toys/test/n": 4.0,
    }
    assert list((tmp_path / "runs/toy/seed0/fit").glob("events.*")), "TensorBoard stays"
    assert run(experiment(tmp_path, {})) == 0
    assert len(list((tmp_path / "runs/store").glob("fit-*"))) == 1


@pytest.mark.parametrize(
    ("logger", "message"),
    [
        (CSV["csv"] | {"nmae": "x"}, r"unknown key 'nmae' at loggers.csv .*did you mean 'name'"),
        ({"save_dir": "x"}, r"no 'target' at loggers.csv"),
    ],
)
def test_a_wrong_logger_is_one_line_before_any_work(tmp_path: Path, logger: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_loggers(Plan.of(load(experiment(tmp_path, {"csv": logger}))))


def test_a_missing_library_is_one_line_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    path = experiment(tmp_path, WANDB)
    with pytest.raises(ConfigError, match=r"^loggers.wandb \(.*x.yaml:\d+\)"):
        check_loggers(Plan.of(load(path)))
    assert run(path) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: loggers.wandb (")
    assert not (tmp_path / "runs/store").exists() or not list((tmp_path / "runs/store").glob("make-*"))


@pytest.mark.slow
def test_weights_and_biases_offline_has_a_run_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    assert run(experiment(tmp_path, WANDB)) == 0
    runs = list((tmp_path / "runs/toy/seed0/loggers/wandb").glob("offline-run-*"))
    assert len(runs) == 4, "make, fit, eval, summary"
    assert all(list(folder.glob("run-*.wandb")) for folder in runs)

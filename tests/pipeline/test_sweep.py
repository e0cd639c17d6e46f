"""Sweeps: cells run and resume, share what is the same, and are compared in one table; a failed one is named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import sweep
from tests import forked
from tests.toy_runs import NUMBERS, ROOT, config, until

RIGHT = "stages.eval.data.right"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An experiment whose first stage no cell of these tests changes, but for the seed."""
    evaluation = {"target": "tests.toys:Results", "source": "${stage:make}"}
    return config(tmp_path, {"make": {"data": NUMBERS | {"count": 3}}, "eval": {"data": evaluation}})


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.sweep.subprocess.Popen", forked.Forked)
    monkeypatch.setattr("pipeline.sweep.ending_signals", lambda: [])  # of this process
    monkeypatch.setattr("pipeline.sweep.prepare_terminal", lambda: None)


def swept(path: Path, *arguments: str) -> int:
    return sweep.main(["--config", str(path), *arguments])


def test_a_sweep_shares_a_store_ends_in_a_table_and_runs_nothing_again(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept(path, f"{RIGHT}=1,3", "seed=0,1") == 0
    out = capsys.readouterr().out
    assert out.count("] make: finished") == 2, "one a seed"
    assert "[right=1, seed 0] eval: finished" in out
    assert "| right=1 |  0, 1 |   4 |   25.0 [0.0, 75.0] |" in out
    assert "| right=3 |  0, 1 |   4 | 75.0 [25.0, 100.0] |" in out
    table = (tmp_path / "runs/sweeps/toy_right.md").read_text()
    assert table in out + "\n"
    summary = json.loads((tmp_path / "runs/toy_right_3/seed1/summary/summary.json").read_text())
    assert (summary["settings"][RIGHT], summary["metrics"]["eval/toys/test/em"]) == (3, 0.75)
    assert swept(path, f"{RIGHT}=1,3", "seed=0,1,2", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[2:4] == [
        "2  right=1, seed 2: would run",
        "3  right=3, seed 0: finished",
    ]
    assert swept(path, f"{RIGHT}=1,3", "seed=0,1") == 0
    again = capsys.readouterr().out
    assert again.startswith("4 cells, 4 of them finished\n")
    assert "begins" not in again
    assert table in again + "\n"


def test_a_failed_cell_is_named_and_the_others_go_on(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept(path, "stages.eval.data.fails=true,false", "seed=0") == 1
    said = capsys.readouterr()
    assert said.err == "error: fails=true, seed 0 failed: error: toys: no answer\n"
    assert "fails=true, seed 0: failed with exit code 1" in said.out
    assert "| fails=false |" in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["stages.eval.data.rihgt=1,2"],
            "error: unknown key 'rihgt' at stages.eval.data (command line); did you mean 'right'?",
        ),
        ([f"{RIGHT}=1,2", "--cell", "2"], "error: --jobs must be at least 1, and --cell below 2"),
    ],
)
def test_a_wrong_setting_is_one_line_before_any_work(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert swept(path, *arguments) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{message}\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_sweep_ends_its_cells_and_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.undo()
    flag = tmp_path / "began"
    path = config(tmp_path, {"sleep": {"data": {"target": "tests.toys:Sleeper", "seconds": 600, "flag": str(flag)}}})
    command = [sys.executable, "-m", "pipeline.sweep", "--config", str(path), "seed=0,1"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(flag.exists)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    name = signal.Signals(number).name
    resume = f"{sys.executable} -m pipeline.sweep --config {path} seed=0,1"
    assert err == f"interrupted ({name}); kept: 0 of 2 cells, and what the others have made; to resume: {resume}\n"
    assert "seed 1" not in out

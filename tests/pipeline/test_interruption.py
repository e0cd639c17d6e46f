"""What an interrupted run says: what is kept, and the command that resumes it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from pipeline import interruption
from pipeline.loader import load
from pipeline.plan import Plan
from tests.toy_runs import chain, fitting, made


@pytest.mark.parametrize(
    ("words", "still", "left"),
    [
        (["a.py", "--force", "rl", "sft", "seed=1"], set(), ["a.py", "seed=1"]),
        (["a.py", "--force=rl", "--config", "x"], set(), ["a.py", "--config", "x"]),
        (["a.py", "--force", "rl", "eval", "--config", "x"], {"eval"}, ["a.py", "--config", "x", "--force", "eval"]),
    ],
)
def test_what_was_forced_is_not_forced_again(words: list[str], still: set[str], left: list[str]) -> None:
    assert interruption.without_force(words, still) == left


def test_what_is_kept_is_said(tmp_path: Path) -> None:
    path = chain(tmp_path)
    plan = Plan.of(load(path))
    assert interruption.kept(plan) == "kept: 0 of 2 stages"
    made(path)
    assert interruption.kept(plan) == "kept: 2 of 2 stages"
    more = plan.stages["more"].artifact.folder
    (more / "manifest.json").rename(more / "origin.json")
    assert interruption.kept(plan) == "kept: 1 of 2 stages"
    for name in ("a/0.jsonl", "1.jsonl"):
        (more / "data" / "units" / name).parent.mkdir(parents=True, exist_ok=True)
        (more / "data" / "units" / name).touch()
    assert interruption.kept(plan) == "kept: 1 of 2 stages, and 2 units of more"


def test_a_fit_is_kept_up_to_its_checkpoint(tmp_path: Path) -> None:
    plan = Plan.of(load(fitting(tmp_path)))
    folder = plan.stages["fit"].artifact.folder
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "origin.json").write_text("{}")
    assert interruption.kept(plan) == "kept: 0 of 1 stages"
    last = folder / "checkpoints" / "last.ckpt"
    last.touch()
    os.utime(last, (0, last.stat().st_mtime - 180))
    assert interruption.kept(plan) == "kept: 0 of 1 stages, and fit up to its checkpoint of 3 min ago"


def test_the_command_is_the_one_that_was_typed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interruption, "_plan", None)
    monkeypatch.setattr(sys, "orig_argv", [".venv/bin/python", "..."])
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", "my file.yaml", "--force", "rl"])
    interruption.say_interrupted(signal.SIGTERM)
    assert capfd.readouterr().err == (
        "interrupted (SIGTERM); nothing has begun; to resume: .venv/bin/python train.py --config 'my file.yaml'\n"
    )

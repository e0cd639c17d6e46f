"""The experiment that one line about a model and questions stands for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from evaluation.zero_shot import main
from pipeline.loader import load
from pipeline.plan import Plan
from tests.test_structure import ROOT


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command line over files in the working folder; what it would become is not run."""
    monkeypatch.chdir(tmp_path)
    Path("mine q.jsonl").write_text('{"question": "Who?", "answers": ["Ada"]}\n')
    Path("corpus.jsonl").write_text('{"id": "a", "title": "A", "text": "Ada."}\n')
    Path("models/all-MiniLM-L6-v2").mkdir(parents=True)
    return ["--model", "ada/tiny-1b", "--questions", "mine q.jsonl", "--corpus", "corpus.jsonl"]


def test_it_writes_an_experiment_and_becomes_its_run(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: ran.append(command))
    main([*files, "--limit", "50", "seed=1"])
    assert ran == [[sys.executable, str(ROOT / "train.py"), "--config", "runs/zero_shot_tiny-1b.yaml", "seed=1"]]
    written = yaml.safe_load(Path("runs/zero_shot_tiny-1b.yaml").read_text())
    assert "null" not in Path("runs/zero_shot_tiny-1b.yaml").read_text()
    assert written["parts"]["model"] == "ada/tiny-1b"
    plan = Plan.of(load("runs/zero_shot_tiny-1b.yaml"))
    assert len(plan.chosen) == 12
    for name in plan.chosen:
        data = plan.resolved(name)["data"]
        assert data["sampler"]["policy"]["device"] == "auto"
        [(dataset, benchmark)] = data["datasets"].items()
        assert dataset == "mine_q"
        assert benchmark["questions"]["sample"] == 50
        assert benchmark["retriever"]["corpus"] == str(Path("corpus.jsonl").resolve())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--questions", "none.jsonl"], "--questions none.jsonl: no such file"),
        (["--limit", "0"], "--limit 0 leaves no question"),
        (["--encoder", "models/none"], "--encoder models/none: no such folder; `make models`"),
    ],
)
def test_a_wrong_command_ends_in_one_line(files: list[str], more: list[str], message: str, capsys) -> None:
    assert main([*files, *more]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not Path("runs").exists()

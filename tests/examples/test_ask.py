from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from examples.ask import main
from tests.micro import QUICKSTART, quickstart


def config(folder: Path) -> Path:
    """The small quickstart as a file, made."""
    assert quickstart(folder / "runs", "--stage", "eval_teacher") == 0
    [resolved] = folder.glob("runs/store/world-*/config.yaml")
    world = yaml.safe_load(resolved.read_text())["data"]
    path = folder / "small.yaml"
    own = {"base": [str(QUICKSTART)], "output": str(folder / "runs"), "stages": {"world": {"data": world}}}
    path.write_text(yaml.safe_dump(own))
    return path


def test_a_question_is_answered_step_by_step_with_its_hits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path)
    capsys.readouterr()
    assert main(["--config", str(path), "--stage", "eval_teacher"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Question: ")
    assert "Step 1: query" in text
    assert "</step> <subquery>" in text
    assert text.rstrip().endswith("EM 1, F1 1.00")
    assert main(["--config", str(path), "--stage", "eval_teacher", "--id", "no-such"]) == 1
    assert "no question with id no-such" in capsys.readouterr().err


def test_an_unmade_stage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump({"base": [str(QUICKSTART)], "output": str(tmp_path / "runs")}))
    assert main(["--config", str(path), "--stage", "eval_teacher"]) == 1
    assert "make world first: python train.py --config" in capsys.readouterr().err

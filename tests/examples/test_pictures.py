"""The pictures of the documentation: one for each scene, and one line where a run lacks what a scene shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.pictures import main
from tests.evaluation.report.fakes import arm, experiment, judged
from tests.evaluation.report.stages import every_stage

pytestmark = pytest.mark.browser


def run(runs: Path, *, searched: bool) -> str:
    right = {"eval_sft": 0.0, "eval_rl": 1.0}
    rows = {name: [judged(0, em, True, True), judged(1, 0.0, True, False)] for name, em in right.items()}
    stages = every_stage(runs) if searched else {}
    evaluated = {name: arm(runs, name, each) for name, each in rows.items()}
    return str(experiment(runs, stages | evaluated, names={"eval_rl": "All stages"}))


def test_every_scene_has_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run(tmp_path, searched=True), "--out", str(tmp_path / "pictures")]) == 0
    names = [f"page_{name}.png" for name in ("overview", "episode", "tree", "two_arms")]
    assert capsys.readouterr().out.split() == [str(tmp_path / "pictures" / name) for name in names]
    assert sorted(names) == sorted(path.name for path in (tmp_path / "pictures").iterdir())


def test_a_run_without_a_tree_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run(tmp_path, searched=False), "--out", str(tmp_path / "pictures")]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert told.endswith("report.html has nothing for the picture tree: take one of configs/quickstart.yaml\n")

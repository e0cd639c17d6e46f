"""What a page begins with: four numbers, the pipeline with its states, and arms by kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.report.overview import by_kind
from evaluation.report.run import read_run
from tests.evaluation.report.fakes import arm, collected, experiment, judged
from tests.evaluation.report.stages import two_policies

BEFORE = [judged(0, 1, True, True), judged(1, 0, False, False), judged(2, 0, True, False), judged(3, 1, True, True)]
AFTER = [judged(0, 0, True, False), judged(1, 1, False, True, flawed=1.0), judged(2, 1, True, True), judged(3, 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of a warm-up and of reinforcement that came from it, whose evaluation was made first."""
    stages = {"eval_rl": arm(tmp_path, "eval_rl", AFTER), "eval_sft": arm(tmp_path, "eval_sft", BEFORE)}
    folder = experiment(tmp_path, stages | {"late": tmp_path / "store" / "late-1"}, names={"eval_rl": "GRPO"})
    two_policies(folder)
    return folder


@pytest.mark.parametrize(
    ("costs", "kind"),
    [
        ({"tokens": {}}, "teacher"),
        ({"tokens": {"policy": 5}}, "baseline"),
        ({"tokens": {}, "api": {"gpt": {"calls": 1}}}, "baseline"),
        (None, "baseline"),
    ],
)
def test_what_no_stage_fitted_is_a_teacher_where_it_samples_nothing(
    tmp_path: Path, costs: dict[str, Any] | None, kind: str
) -> None:
    folder = arm(tmp_path, "eval", BEFORE)
    told = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(told | ({"costs": costs} if costs else {})))
    assert by_kind(read_run(experiment(tmp_path, {"eval": folder}))).kinds == {"eval": kind}


def test_arms_are_sorted_by_kind_whenever_they_were_evaluated(folder: Path) -> None:
    data = collected(folder)
    assert data["arms"] == ["eval_sft", "GRPO"]
    assert data["kinds"] == {"exp:eval_sft": "warm-up", "eval_sft": "warm-up", "GRPO": "reinforcement"}
    assert list(data["figures"]["arms"]["panels"]["toy/dev"]) == ["exp:eval_sft", "GRPO"]
    assert [line[0] for line in data["results"][0]["table"][1]] == ["eval_sft", "GRPO"]


def test_arms_of_several_runs_are_sorted_by_kind_before_run(folder: Path) -> None:
    other = folder.with_name("seed1")
    other.mkdir()
    (other / "experiment.json").write_text((folder / "experiment.json").read_text())
    data = collected(folder, other)
    assert data["arms"] == ["exp/seed0:eval_sft", "exp/seed1:eval_sft", "exp/seed0:GRPO", "exp/seed1:GRPO"]
    assert [line[0] for line in data["results"][0]["table"][1]] == data["arms"]
    assert list(data["figures"]["arms"]["panels"]["toy/dev"]) == ["exp:eval_sft", "GRPO"]


def test_four_numbers_are_of_the_last_arm_and_of_what_the_run_took(folder: Path) -> None:
    (run,) = collected(folder)["runs"]
    exact, gain, process, time = run["numbers"]
    assert exact == ("75.0 %", "exact match of GRPO", "37.5 to 75.0, 4 questions of toy/dev")
    assert gain[:2] == ("+25.0", "points against eval_sft")
    low, high = gain[2].split(" to ")
    assert float(low) < 25 < float(high)
    assert process == ("1.50", "searches", "queries a question"), "no step was judged"
    assert time == ("3 min", "for 4 of 5 stages", "4,000 tokens sampled")


def test_every_stage_has_its_state_and_where_it_came_from(folder: Path) -> None:
    (run,) = collected(folder)["runs"]
    told = {stage["name"]: (stage["sign"], stage["told"]) for stage in run["pipeline"]}
    assert told["rl"] == ("✓", "finished, 2 min, from sft")
    assert told["late"] == ("○", "not begun")
    assert list(told) == ["sft", "rl", "eval_rl", "eval_sft", "late"]


def test_the_first_question_is_one_that_reinforcement_mended_without_a_flaw(folder: Path) -> None:
    data = collected(folder)
    assert data["mended"] == ("eval_sft", "GRPO")
    assert [question["id"] for question in data["questions"]] == ["q2", "q0", "q1", "q3"], "q1 is flawed"

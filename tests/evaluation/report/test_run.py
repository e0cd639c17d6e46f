"""A run as it is read, whatever its state; a row of another version is a line that names file and key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from evaluation.kept_episodes import keep
from evaluation.report.run import read_run
from tests.evaluation.fake import run
from tests.evaluation.report.fakes import arm, collected, experiment, judged, page
from tests.evaluation.report.stages import two_policies

Row = dict[str, Any]
ROWS = [judged(0, 0, True, True), judged(1, 1, False, False)]
PASSAGE = {"d1": {"title": "T", "text": "x"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with two policies, the second with a curve of one point and one iteration."""
    folder = experiment(tmp_path, {stage: arm(tmp_path, stage, ROWS) for stage in ("eval_sft", "eval_rl")})
    two_policies(folder)
    data = data_of(folder, "rl")
    keep(data / "validation" / "0.json", ROWS, PASSAGE, dataset="toy", split="dev", update=0)
    rewarded = ROWS[0] | {"shown_as": "best of 2", "outcome": {"reward": 1.0}}
    keep(data / "iterations" / "0.json", [rewarded], PASSAGE, iteration=0, update=0)
    return folder


def data_of(folder: Path, stage: str) -> Path:
    return folder.parents[1] / "store" / f"{stage}-1" / "data"


def edit(path: Path, change: Callable[[Row], Any]) -> None:
    """Change a file, or its last row."""
    *rows, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    told = json.loads(last)
    change(told)
    path.write_text("\n".join([*rows, json.dumps(told)]) + "\n")


def problem(folder: Path) -> str:
    """The only problem that the page of a run tells."""
    shown = page(folder)
    assert shown.counts()["eval_sft"]["n"] == 2, "the rest is shown"
    told = re.findall("Could not be read:</strong> (.*?)</p>", shown.html)
    assert len(told) == 1
    return unescape(told[0])


def test_an_intact_run_tells_no_problem(folder: Path) -> None:
    assert collected(folder)["problems"] == []


@pytest.mark.parametrize("key", ["id", "question", "answers", "prediction", "status", "steps", "em", "f1"])
def test_an_evaluation_whose_rows_lack_something_is_left_out(folder: Path, key: str) -> None:
    path = data_of(folder, "eval_rl") / "predictions-toy-dev.jsonl"
    edit(path, lambda row: row.pop(key))
    told = problem(folder)
    assert f"{path}: an episode lacks '{key}'" in told
    assert "eval_rl" not in page(folder).counts()


@pytest.mark.parametrize("key", ["kind", "text", "valid", "hits"])
def test_steps_are_checked_too(folder: Path, key: str) -> None:
    path = data_of(folder, "eval_rl") / "predictions-toy-dev.jsonl"
    edit(path, lambda row: row["steps"][1].pop(key))
    assert f"{path}: a step of q1 lacks '{key}'" in problem(folder)


@pytest.mark.parametrize("key", ["id", "title", "text"])
def test_passages_are_checked_too(folder: Path, key: str) -> None:
    path = data_of(folder, "eval_rl") / "passages-toy-dev.jsonl"
    edit(path, lambda row: row.pop(key))
    assert f"{path}: a passage lacks '{key}'" in problem(folder)


@pytest.mark.parametrize(
    ("what", "change", "told"),
    [
        ("validation", lambda row: row.pop("episodes"), "lacks 'episodes'"),
        ("validation", lambda row: row.pop("split"), "lacks 'split'"),
        ("validation", lambda row: row["episodes"][0].pop("em"), "an episode lacks 'em'"),
        ("validation", lambda row: row["passages"]["d1"].pop("title"), "a passage lacks 'title'"),
        ("validation", lambda row: row.update(update="late"), "has a str as 'update'"),
        ("iterations", lambda row: row.pop("passages"), "lacks 'passages'"),
        ("iterations", lambda row: row.pop("update"), "lacks 'update'"),
        ("iterations", lambda row: row["episodes"][0].pop("shown_as"), "an episode lacks 'shown_as'"),
        ("iterations", lambda row: row["episodes"][0]["steps"][0].pop("hits"), "a step of q0 lacks 'hits'"),
    ],
)
def test_what_training_kept_is_checked_too(folder: Path, what: str, change: Callable[[Row], Any], told: str) -> None:
    path = data_of(folder, "rl") / what / "0.json"
    edit(path, change)
    text = problem(folder)
    assert str(path) in text
    assert told in text


def test_a_measure_that_is_text_is_a_problem_of_its_evaluation(folder: Path) -> None:
    path = data_of(folder, "eval_rl") / "results.json"
    edit(path, lambda results: results["rows"][0].update(em="high"))
    assert f"{path}: a row has a str as 'em'" in problem(folder)


@pytest.mark.parametrize("told", [{}, {"stages": ["rl"]}])
def test_a_run_that_names_no_stages_is_told_with_its_file(folder: Path, told: Row) -> None:
    (folder / "experiment.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match=r"experiment\.json (lacks|has a list as) 'stages'"):
        read_run(folder)


def test_a_run_half_done_says_what_is_missing_and_a_stage_that_failed_why(tmp_path: Path) -> None:
    store = tmp_path / "store"
    stages = {"eval_sft": arm(tmp_path, "eval_sft", ROWS)} | {name: store / name for name in ("rl", "rft", "eval_rl")}
    for name in ("rl", "rft"):
        stages[name].mkdir()
    (stages["rft"] / "failed.txt").write_text("dev.jsonl:3: <not> JSON\n")
    told = {name: stage.status for name, stage in read_run(experiment(tmp_path, stages)).stages.items()}
    failed = "failed: dev.jsonl:3: <not> JSON"
    assert told == {"eval_sft": "finished", "rl": "not finished", "rft": failed, "eval_rl": "not begun"}


@pytest.mark.parametrize("damaged", ["manifest.json", "data/results.json", "data/predictions-toy-dev.jsonl"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(folder: Path, damaged: str) -> None:
    (data_of(folder, "eval_rl").parent / damaged).write_text("{")
    shown = page(folder)
    assert "Could not be read:" in shown.html
    assert Path(damaged).name in shown.html
    assert shown.counts()["eval_sft"]["n"] == 2


def test_a_step_ranking_of_an_earlier_version_is_left_out_and_named(folder: Path) -> None:
    data = data_of(folder, "eval_rl")
    (data / "step_ranking.json").write_text("{}")
    (data / "steps.jsonl").write_text('{"id": "q", "kind": "query", "valid": true, "scores": {"prm": 1.0}}\n')
    assert problem(folder).startswith("a step ranking lacks")
    assert "– No stage ranked steps." in page(folder).html


def test_an_older_run_is_known_by_its_results(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    told = read_run(tmp_path / "exp" / "seed0")
    assert (list(told.stages), told.changes) == (["eval"], "")
    results = json.loads((tmp_path / "exp" / "seed0" / "results.json").read_text())
    assert results["artifacts"] == {"eval": "../../store/eval-exp-0"}

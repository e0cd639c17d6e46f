"""Training episodes as a page shows them: iterations with rewards, questions along a curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluation.kept_episodes import keep
from evaluation.report import training_episodes
from evaluation.report.episodes import Passages
from evaluation.report.run import read_run
from evaluation.report.training_episodes import iterations, minds
from tests.evaluation.report.fakes import experiment

FOUND = {"d0": {"title": "T", "text": "x"}, "d1": {"title": "T", "text": "y"}}


def row(id_: str, em: float, said: str, **more: Any) -> dict[str, Any]:
    step = {"kind": "answer", "text": said, "valid": True, "hits": ["d1"], "said": said, "logp": -em} | more
    told = {"id": id_, "question": f"Who is {id_}?", "answers": ["Ann"], "prediction": said, "status": "answered"}
    return told | {"em": em, "f1": em, "steps": [step], "shown_as": "best of 2", "outcome": {"reward": em}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stage that is not finished, with a curve of three points and three iterations."""
    stage = tmp_path / "store" / "rl-1" / "data"
    answers = {"steady": ["Ann"] * 3, "learns": ["Bob", "Bob", "Ann"], "wavers": ["Ann", "Bob", "Ann"]}
    for place, update in enumerate((0, 4, 8)):
        rows = [row(id_, float(said[place] == "Ann"), said[place]) for id_, said in answers.items()]
        point = {"dataset": "world", "split": "dev", "update": update}
        keep(stage / "validation" / f"world-dev-{update:06d}.json", rows, FOUND, **point)
    for number in range(3):
        rewarded = row("q", 1.0, f"said {number}", rewards={"prm": 0.25}, advantage=1.5)
        keep(stage / "iterations" / f"{number:06d}.json", [rewarded], FOUND, iteration=number, update=number + 1)
    return experiment(tmp_path, {"rl": stage.parent})


def test_questions_along_a_curve_come_by_how_often_their_verdict_changes(folder: Path) -> None:
    passages = Passages()
    (told,) = minds(read_run(folder), passages)
    assert (told["stage"], told["dataset"], told["updates"]) == ("rl", "world/dev", [0, 4, 8])
    assert told["rows"] == [
        ("Who is wavers?", ["right", "wrong", "right"]),
        ("Who is learns?", ["wrong", "wrong", "right"]),
        ("Who is steady?", ["right", "right", "right"]),
    ]
    assert [each["question"]["id"] for each in told["changed"]] == ["wavers", "learns"]
    learns = told["changed"][1]["points"]
    assert [point["update"] for point in learns] == [0, 4, 8]
    assert [point["episode"] is None for point in learns] == [False, True, False], "the same steps are not repeated"
    assert passages.rows == [("d1", "T", "y")]


def test_iterations_of_a_stage_under_way_have_their_rewards_and_advantages(folder: Path) -> None:
    (told,) = iterations(read_run(folder), Passages())
    assert [(point["iteration"], point["update"]) for point in told["points"]] == [(0, 1), (1, 2), (2, 3)]
    (episode,) = told["points"][2]["episodes"]
    assert (episode["name"], episode["question"]["text"]) == ("best of 2", "Who is q?")
    assert episode["episode"]["rewards"] == [("reward 1.00", "much", 1.0)]
    chips = [text for text, *_ in episode["episode"]["steps"][0]["chips"]]
    assert chips == ["format ✓", "true –", "prm +0.25", "advantage +1.50", "log-prob -1.00"]


def test_what_is_left_out_is_counted_and_iterations_are_spread_over_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("ITERATIONS", 2), ("QUESTIONS", 1), ("CHANGED", 1)):
        monkeypatch.setattr(training_episodes, name, most)
    (told,), (curve,) = iterations(read_run(folder), Passages()), minds(read_run(folder), Passages())
    assert [point["iteration"] for point in told["points"]] == [0, 2]
    assert (told["more"], curve["more"], curve["more_changed"]) == (1, 2, 1)

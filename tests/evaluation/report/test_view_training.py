"""Training episodes as a page shows them: iterations with rewards, questions along a curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluation.kept_episodes import keep
from evaluation.report.view_run import read_run
from evaluation.report.view_steps import Shelf
from evaluation.report.view_training import iterations, minds
from tests.evaluation.report.view_fakes import Page, experiment, page

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
    ((verdicts, changes),) = minds(read_run(folder))
    assert verdicts.told == {"stage": "rl", "dataset": "world/dev", "updates": [0, 4, 8]}
    shown = [verdicts.show(item, Shelf(0)) for item in verdicts.items]
    assert [(each["question"]["id"], each["outcomes"]) for each in shown] == [
        ("wavers", ["right", "wrong", "right"]),
        ("learns", ["wrong", "wrong", "right"]),
        ("steady", ["right", "right", "right"]),
    ]
    changed = [changes.show(item, Shelf(9999)) for item in changes.items]
    assert [each["question"]["id"] for each in changed] == ["wavers", "learns"]
    learns = changed[1]["points"]
    assert [point["episode"] is None for point in learns] == [False, True, False], "the same steps are not repeated"


def test_iterations_come_in_their_order_and_those_spread_over_all_have_room_first(folder: Path) -> None:
    (told,) = iterations(read_run(folder))
    assert [point["iteration"] for point in told.items] == [0, 1, 2]
    assert told.order == [0, 2, 1]


def test_a_stage_under_way_shows_what_it_has_kept_so_far(folder: Path) -> None:
    shown: Page = page(folder)
    assert "Iteration 2, after update 3" in shown.html
    assert "prm +0.25" in shown.html
    assert "advantage +1.50" in shown.html
    caption = "rl, world/dev: right (✓) or wrong (✗) after so many updates; those that change most come first"
    header, first, *_ = shown.tables[caption]
    assert header == ["question", "0", "4", "8"]
    assert first == ["Who is wavers?", "✓", "✗", "✓"]
    assert "after update 4" in shown.html

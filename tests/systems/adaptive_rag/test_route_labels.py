"""Labels of the router: the simplest route that is right, counts of all, never on questions that are evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DataError
from datamodules.records import episode_to_row, write_rows
from datamodules.sources.rows import Rows
from envs.types import Episode, Gold, Question
from systems.adaptive_rag.route_labels import RouteLabels, simplest
from tests import micro
from tests.making import files, run

# By question: whether A, B, C are right; the last one has no episode of C.
RIGHT = {"q0": (0, 1, 1), "q1": (0, 0, 1), "q2": (1, 0, 1), "q3": (0, 0, 0), "q4": (0, 1)}


def stages(folder: Path, right: dict[str, tuple[int, ...]] = RIGHT) -> dict[str, Path]:
    paths = {letter: folder / letter for letter in "ABC"}
    for place, (_, path) in enumerate(paths.items()):
        asked = [(Question(name, f"Who is {name}?", ("Ada",)), own) for name, own in right.items() if place < len(own)]
        episodes = [Episode(one, (1,), status="answered", answer="ADA." if own[place] else "x") for one, own in asked]
        write_rows(path / "data" / "episodes.jsonl", map(episode_to_row, episodes))
    return paths


def more(*hops: int | None) -> Any:
    return [Question(f"q{n}", f"More {n}?", ("x",), Gold(hops=count)) for n, count in enumerate(hops, start=4)]


@pytest.mark.parametrize(
    ("right", "label"), [((0, 1, 1), "B"), ((0, 0, 1), "C"), ((1, 0, 1), "A"), ((0, 0, 0), "dropped")]
)
def test_the_simplest_route_that_is_right_is_the_label(right: tuple[bool, ...], label: str) -> None:
    assert simplest(right) == label


def test_letters_and_counts_and_no_question_twice(tmp_path: Path) -> None:
    headline = run(RouteLabels(stages(tmp_path), questions=more(1, 1, 3)), tmp_path / "labels")
    counts = {"A": 1, "B": 1, "C": 1, "dropped": 1, "incomplete": 1, "hops/B": 1, "hops/C": 1}
    assert headline == counts
    assert json.loads((tmp_path / "labels/data/labels.json").read_text()) == counts
    read = {one.id: one.answers for one in Rows(tmp_path / "labels/data/questions.jsonl")}
    assert read == {"q0": ("B",), "q1": ("C",), "q2": ("A",), "q5": ("B",), "q6": ("C",)}


def test_a_killed_stage_is_made_again_to_the_byte(tmp_path: Path) -> None:
    maker = RouteLabels(stages(tmp_path))
    run(maker, tmp_path / "one")
    run(maker, tmp_path / "two", world_size=2)
    (tmp_path / "two/data/labels.json").unlink()  # as if killed between the two files
    run(maker, tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_what_cannot_be_labelled_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="paths are A; give one for each of A, B, C"):
        RouteLabels({"A": tmp_path})
    with pytest.raises(ConfigError, match="question q4 does not say how many hops it takes"):
        run(RouteLabels(stages(tmp_path), questions=more(None)), tmp_path / "hops")
    with pytest.raises(DataError, match="no question of 1 has a route that answers it"):
        run(RouteLabels(stages(tmp_path / "wrong", {"q0": (0, 0, 0)})), tmp_path / "none")


@pytest.mark.parametrize("part", ["parts.router_questions.split", "parts.router_hop_questions.split"])
def test_a_router_is_never_taught_on_questions_that_are_evaluated(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = micro.CONFIGS / "baselines" / "adaptive_rag.yaml"
    arguments = ("devices=1", f"output={tmp_path}", "--dry-run", "--stage", "eval_adaptive_rag", f"{part}=test")
    assert micro.run(*arguments, config=config) == 2
    assert "error: leak: the same questions for sft at stages.route_" in capsys.readouterr().err

"""Lists that grow with the stages: in turn, within their share, and a page that stays small with many of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluation.kept_episodes import keep
from evaluation.report.view_share import Listing, share, spread
from evaluation.report.view_steps import Shelf
from tests.evaluation.report.view_fakes import Page, arm, experiment, judged, page

PLACED = {"d": {"title": "T", "text": "x"}}


def listing(*sizes: int, **more: Any) -> Listing:
    return Listing("tree", {}, sizes, **more)


def shared(budget: int, *lists: Listing, shelf: Shelf | None = None) -> list[list[int]]:
    """The sizes of the items of each list that have room."""
    shelf = shelf or Shelf(0)
    room = shelf.budget
    taken = share(lists, shelf, budget, lambda kind, size: "x" * size)
    sizes = [[len(markup) for markup in each.shown] for each in lists]
    assert taken == sum(map(sum, sizes)) + room - shelf.budget
    return sizes


def test_lists_have_their_items_in_turn() -> None:
    first, second = listing(5, 5, 5), listing(5, 5)
    assert shared(15, first, second) == [[5, 5], [5]]
    assert (first.left_out, second.left_out) == (1, 1)


def test_a_list_ends_where_an_item_has_no_room_and_the_others_go_on() -> None:
    assert shared(9, listing(2, 50, 1), listing(2, 2, 2)) == [[2], [2, 2, 2]]


def test_items_come_by_need_and_are_shown_in_their_order() -> None:
    assert shared(9, listing(1, 2, 3, 4, order=[3, 0, 2, 1])) == [[1, 3, 4]]


def test_passages_count() -> None:
    def show(size: int, shelf: Shelf) -> int:
        shelf.place("d", PLACED)
        return size

    assert shared(200, listing(50, 50, show=show), shelf=Shelf(9999)) == [[50]], "a passage of 123 bytes, once"


def test_every_beginning_of_an_order_is_spread() -> None:
    assert spread(9) == [0, 8, 4, 2, 6, 1, 3, 5, 7]
    assert [spread(count) for count in range(4)] == [[], [0], [0, 1], [0, 2, 1]]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Six stages that train, each with 12 iterations of 4 episodes and 11 points of 60 questions."""
    runs = tmp_path_factory.mktemp("runs")
    stages = {"eval": arm(runs, "eval", [judged(number, float(number % 3 > 0), True, True) for number in range(300)])}
    for number in range(6):
        stages[f"rl{number}"] = runs / "store" / f"rl{number}-1"
        trained(stages[f"rl{number}"] / "data", f"rl{number}")
    return page(experiment(runs, stages), limit=1_700_000)


def trained(data: Path, name: str) -> None:
    def row(number: int, point: int) -> dict[str, Any]:
        told = judged(number, float((number + point) % 2), True, True)
        said = f"{name} {number} {point} " + "word " * 100
        steps = [dict(step, said=said, hits=[f"{name}{number}{place}"]) for place, step in enumerate(told["steps"] * 2)]
        return told | {"steps": steps, "shown_as": f"one of {number}", "outcome": {"reward": 1.0}}

    found = {f"{name}{n}{place}": {"title": "T", "text": f"{n} {name} " * 90} for n in range(60) for place in range(4)}
    for point in range(12):
        rows = [row(number, point) for number in range(4)]
        keep(data / "iterations" / f"{point:03d}.json", rows, found, iteration=point, update=point)
    for point in range(11):
        rows = [row(number, point) for number in range(60)]
        keep(data / "validation" / f"{point:03d}.json", rows, found, dataset="toy", split="dev", update=point)


def test_a_page_with_much_training_is_no_larger_and_has_every_episode_of_the_evaluation(large: Page) -> None:
    assert 1_400_000 < len(large.html.encode()) < 1_700_000
    assert "300 of 300 episodes" in large.html
    assert all(f"e{number}" in large.ids for number in range(300))


def test_every_stage_is_on_it_and_what_is_left_out_is_told(large: Page) -> None:
    training = large.html[large.html.index('id="training"') :]
    for stage in range(6):
        start = training.index(f"<h3>rl{stage}: iterations</h3>")
        end = training.find("<h3>", start + 1)
        assert "<summary>Iteration 0, after update 0</summary>" in training[start:end]
        assert "more iterations are left out." in training[start:end]
    for left in ("more questions are left out.", "more questions whose verdict changed are left out."):
        assert training.count(left) == 6


def test_passages_of_evaluations_have_room_first(large: Page) -> None:
    texts = [large.text[f"p{number}"] for number in range(300)]
    assert all("Text of d" in text for text in texts)

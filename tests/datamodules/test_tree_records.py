from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from common.errors import DataError
from datamodules.records import (
    pair_from_row,
    pair_to_row,
    read_rows,
    tree_from_row,
    tree_to_row,
    write_rows,
)
from datamodules.tree.node import Node, Tree
from envs.pairs import Pair
from envs.types import Action, Document, Episode, Hit, Question, Step, Turn

QUESTION = Question("q", "Who?", ("Ada",))


def turn(text: str, kind: str = "query", hits: tuple[Hit, ...] = ()) -> Turn:
    return Turn(
        "policy", (1,), (2, 3), (-0.5, -0.25), "stop", f"q/0/{text}", text, action=Action(kind, text), hits=hits
    )


def step(one: Turn, index: int) -> Step:
    return Step(one.action.kind, True, ((index, 0, 2),), one.text, said=one.text, hits=one.hits)


def pair() -> Pair:
    first = turn("first", hits=(Hit(Document("d", "Title", "A long passage."), 1.0),))
    good, bad = turn("Ada", "answer"), turn("again")
    chosen = Episode(QUESTION, (9,), [first, good], "answered", "Ada", (step(first, 0), step(good, 1)))
    rejected = Episode(QUESTION, (9,), [first, bad], steps=(step(first, 0), step(bad, 1)))
    return Pair(chosen, rejected, 0.75, 3, 0.25, 2, "answers at once")


def test_a_pair_is_read_as_it_was_written_and_its_history_is_written_once(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.jsonl", [pair_to_row(pair())])
    [row] = read_rows(tmp_path / "pairs.jsonl", "pair/2")
    assert pair_from_row(row) == pair()
    assert json.dumps(row).count("q/0/first") == 1
    assert row["chosen"]["status"] == "answered"
    assert row["rejected"]["value"] == 0.25


def test_sides_that_part_early_share_only_what_they_have_in_common() -> None:
    """The worse step lies two turns below the better one."""
    first, good, bad = turn("first"), turn("again"), turn("Ada", "answer")
    chosen = Episode(QUESTION, (9,), [first], steps=(step(first, 0),))
    rejected = Episode(
        QUESTION, (9,), [first, good, bad], "answered", "Ada", (step(first, 0), step(good, 1), step(bad, 2))
    )
    row = pair_to_row(Pair(chosen, rejected))
    assert (row["history"]["turns"], len(row["chosen"]["turns"]), len(row["rejected"]["turns"])) == ([], 1, 3)
    assert pair_from_row(row) == Pair(chosen, rejected)


def test_two_episodes_of_a_read_pair_share_their_history_but_can_be_changed_apart() -> None:
    read = pair_from_row(pair_to_row(pair()))
    read.chosen.turns.append(turn("more"))
    read.chosen.truncations["turn"] += 1
    assert len(read.rejected.turns) == 2
    assert not read.rejected.truncations
    assert read.chosen.turns[0] is read.rejected.turns[0]


def test_steps_that_differ_before_the_last_turn_stay_with_their_side() -> None:
    """A step may span two turns, so the last turn can change what the one before it was."""
    original = pair()
    steps = (dataclasses.replace(original.rejected.steps[0], query="first, and again"),)
    changed = dataclasses.replace(original, rejected=dataclasses.replace(original.rejected, steps=steps))
    assert pair_from_row(pair_to_row(changed)) == changed


def test_a_tree_is_read_as_it_was_written() -> None:
    leaf = Node(turn("Ada", "answer"), 0.25, 1, 2, 0.5, "answered", 1.0)
    tree = Tree(QUESTION, (9,), Node(visits=3, value=0.5, children=[Node(turn("first"), children=[leaf])]), {"dead": 1})
    row = json.loads(json.dumps(tree_to_row(tree)))
    assert row["schema"] == "tree/1"
    assert tree_from_row(row) == tree


@pytest.mark.parametrize(("key", "value"), [("schema", "pair/1"), ("history", None), ("reason", 3)])
def test_a_damaged_pair_ends_in_an_error_that_names_the_line(key: str, value: object) -> None:
    with pytest.raises(DataError, match=r"pairs\.jsonl:7"):
        pair_from_row(pair_to_row(pair()) | {key: value}, "pairs.jsonl:7")


def test_paths_come_depth_first_and_share_their_turns() -> None:
    a, b = Node(turn("a")), Node(turn("b"))
    a.children = [Node(turn("a1"))]
    tree = Tree(QUESTION, (9,), Node(children=[a, b]))
    assert [[node.turn.text for node in path if node.turn] for path in tree.paths()] == [[], ["a"], ["a", "a1"], ["b"]]
    assert tree.episode((tree.root, a)).turns[0] is a.turn

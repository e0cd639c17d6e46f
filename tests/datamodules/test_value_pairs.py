"""Pairs from the values of trees: which siblings make one, what a row holds, what they amount to."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DataError
from datamodules.records import episode_from_row, pair_from_row, read_rows, tree_to_row, write_rows
from datamodules.tree.labels import rollouts, tree_backup
from datamodules.tree.node import Node, Tree
from datamodules.value_pairs import ValuePairs
from envs.pairs import Pair
from envs.types import Episode, Question, Turn
from systems.reasonrag.sft_on_chosen import SftOnChosen
from tests.making import check_shares_and_resumes, run
from tests.tiny import byte_tokenizer
from tests.toy_protocols import TAGS, Notebook

PROTOCOL = Notebook(byte_tokenizer(TAGS))
FIND, NOTE, SAY = "<find>{}</find>", "<note>{}</note>", "<say>{}</say>"


def node(text: str, value: float, *children: Node, end: bool = False, **settings: Any) -> Node:
    """A node that was valued once, and its children; its sampled tokens are odd, and so is its context."""
    ids, context = PROTOCOL.codec.control(text), PROTOCOL.codec.control(f"before {text[1:3]}")
    uid = settings.pop("uid", f"u/{text}/{value}")
    turn = Turn("policy", (9,), ids, (-0.5,) * len(ids), "stop", uid, text, context_ids=context, **settings)
    turn.action = PROTOCOL.parse(Episode(Question("q", "?", ("Ada",)), ()), turn)
    below = sum(child.visits for child in children)
    mean = (value + sum(child.value * child.visits for child in children)) / (1 + below)
    status, outcome = ("answered", value) if end else (None, None)
    return Node(turn, visits=1 + below, value=mean, status=status, outcome=outcome, children=list(children))  # type: ignore[arg-type]


def searched(folder: Path, *roots: list[Node]) -> Path:
    trees = [
        Tree(Question(f"q{i}", f"Who wrote {i}?", ("Ada",)), (7,), Node(visits=9, children=children))
        for i, children in enumerate(roots)
    ]
    write_rows(folder / "search" / "data" / "trees.jsonl", map(tree_to_row, trees))
    return folder / "search"


def pairs(folder: Path) -> list[Pair]:
    return [pair_from_row(row) for row in read_rows(folder / "data" / "pairs.jsonl", "pair/2")]


def asked(folder: Path) -> list[tuple[str, str]]:
    return [(pair.chosen.turns[-1].action.text, pair.rejected.turns[-1].action.text) for pair in pairs(folder)]


BELOW = (node(NOTE.format("by Ada"), 0.7), node(NOTE.format("by Bob"), 0.1))
GROWN = [node(FIND.format("who?"), 0.6, *BELOW), node(SAY.format("Ada"), 0.9, end=True), node("no tag", 0.0)]


def test_every_two_children_whose_labels_differ_make_a_pair_on_every_level(tmp_path: Path) -> None:
    """The query's own rollouts gave .6, whatever came below it; the turn without a decision is the worse one twice."""
    figures = run(ValuePairs(searched(tmp_path, GROWN), PROTOCOL), tmp_path / "out")
    assert asked(tmp_path / "out") == [("Ada", "who?"), ("Ada", ""), ("who?", ""), ("by Ada", "by Bob")]
    first, *_, last = pairs(tmp_path / "out")
    assert (first.chosen_value, first.rejected_value, first.reason) == (0.9, 0.6, "label 0.9 against 0.6")
    assert (last.chosen_value, last.rejected_value) == (0.7, 0.1)
    assert [turn.action.text for turn in last.rejected.turns] == ["who?", "by Bob"]
    assert (figures["pairs"], figures["questions"], figures["trees"]) == (4, 1, 1)


def test_a_row_holds_the_tree_s_own_tokens_and_the_context_of_the_turn(tmp_path: Path) -> None:
    run(ValuePairs(searched(tmp_path, GROWN), PROTOCOL), tmp_path / "out")
    row = list(read_rows(tmp_path / "out" / "data" / "pairs.jsonl", "pair/2"))[-1]
    [chosen], [rejected] = row["chosen"]["turns"], row["rejected"]["turns"]
    turns = [child.turn for child in BELOW]
    for written, turn in ((chosen, turns[0]), (rejected, turns[1])):
        assert turn is not None
        assert (tuple(written["action_ids"]), tuple(written["context_ids"])) == (turn.action_ids, turn.context_ids)
        assert (tuple(written["opening_ids"]), written["uid"]) == ((9,), turn.uid)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (node(SAY.format("Bob"), 0.895, end=True), "close"),
        (node("So: " + SAY.format("ADA "), 0.5, end=True), "same"),
        (node("<say>Eve</say> and more", 0.95, end=True), "malformed"),
    ],
)
def test_siblings_too_alike_or_with_a_malformed_better_side_make_none_and_are_counted(
    other: Node, why: str, tmp_path: Path
) -> None:
    trees = searched(tmp_path, [node(SAY.format("Ada"), 0.9, end=True), other], GROWN)
    figures = run(ValuePairs(trees, PROTOCOL), tmp_path / "out")
    assert {name: figures[f"siblings/{name}"] for name in ("close", "same", "malformed")} == {
        name: float(name == why) for name in ("close", "same", "malformed")
    }
    assert {pair.chosen.question.id for pair in pairs(tmp_path / "out")} == {"q1"}


@pytest.mark.parametrize(("better", "worse"), [(0.91, 0.9), (0.03, 0.02)])  # .03 - .02 is less than .01 in floats
def test_the_least_gap_is_that_of_the_paper(tmp_path: Path, better: float, worse: float) -> None:
    ends = [node(SAY.format(name), value, end=True) for name, value in (("Ada", better), ("Bob", worse))]
    trees = searched(tmp_path, ends)
    assert run(ValuePairs(trees, PROTOCOL), tmp_path / "out")["pairs"] == 1
    with pytest.raises(DataError, match="no pair in 1 trees"):
        run(ValuePairs(trees, PROTOCOL, min_gap=0.02), tmp_path / "none")


def test_labels_are_an_argument(tmp_path: Path) -> None:
    """By its own rollouts the query is worth .6, less than Bob's .65; by the ends below it .81, and Bob nothing."""
    below = node(SAY.format("Ada"), 0.2, end=True)
    trees = searched(tmp_path, [node(FIND.format("who?"), 0.6, below), node(SAY.format("Bob"), 0.65, end=True)])
    for name, labels, expected in (
        ("rollouts", rollouts, ("Bob", "who?", 0.65, 0.6)),
        ("tree", partial(tree_backup, alpha=0.9), ("who?", "Bob", 0.81, 0.0)),
    ):
        run(ValuePairs(trees, PROTOCOL, labels=labels), tmp_path / name)
        [pair] = pairs(tmp_path / name)
        assert (*asked(tmp_path / name)[0], pair.chosen_value, pair.rejected_value) == pytest.approx(expected)


def test_turns_that_do_not_train_make_none(tmp_path: Path) -> None:
    frozen = [node(SAY.format("Ada"), 0.9, end=True, trainable=False), node(SAY.format("Bob"), 0.1, trainable=False)]
    run(ValuePairs(searched(tmp_path, frozen, GROWN), PROTOCOL), tmp_path / "out")
    assert {pair.chosen.question.id for pair in pairs(tmp_path / "out")} == {"q1"}


def test_trees_without_a_pair_are_one_line_that_says_why(tmp_path: Path) -> None:
    alike = [node(SAY.format(text), 0.5, end=True) for text in ("Ada", "Bob", "Eve")]
    malformed = [node("nothing", 0.8), node(SAY.format("Bob"), 0.1, end=True)]
    with pytest.raises(DataError) as error:
        run(ValuePairs(searched(tmp_path, alike, malformed), PROTOCOL), tmp_path / "out")
    assert "no pair in 2 trees; of two siblings there were 3 with labels too close, 0 that ask for the same, 1" in str(
        error.value
    )
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="no trees to compare"):
        run(ValuePairs(searched(tmp_path / "none"), PROTOCOL), tmp_path / "empty")


def test_the_statistics_have_the_form_of_the_published_table(tmp_path: Path) -> None:
    figures = run(ValuePairs(searched(tmp_path, GROWN, GROWN[:2]), PROTOCOL), tmp_path / "out")
    counts = {name: figures[name] for name in ("pairs", "pairs/answer", "pairs/query", "pairs/note", "pairs/crossing")}
    assert counts == {"pairs": 6, "pairs/answer": 3, "pairs/query": 1, "pairs/note": 2, "pairs/crossing": 4}
    tokens = {text: len(PROTOCOL.codec.control(text)) for text in (SAY.format("Ada"), FIND.format("who?"))}
    tokens["note"] = len(PROTOCOL.codec.control(NOTE.format("by Ada")))
    lengths = [tokens[SAY.format("Ada")]] * 3 + [tokens[FIND.format("who?")]] + [tokens["note"]] * 2
    assert figures["iterations/average"] == pytest.approx(8 / 6, abs=0.01)
    assert [figures[f"iterations/{name}"] for name in ("min", "median", "max")] == [1, 1, 2]
    assert figures["response_tokens/average"] == pytest.approx(sum(lengths) / 6, abs=0.01)
    assert [figures[f"response_tokens/{name}"] for name in ("min", "max")] == [min(lengths), max(lengths)]
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| answer | 3 |\n| note | 2 |\n| query | 1 |\n| all | 6 |" in page
    assert "| iteration of the turn | 1.33 | 1 | 1 | 2 |" in page
    assert "## answer against query" in page
    assert "[N 9, Q 0.00, P 1.00] start" in page, "one tree"
    assert json.loads((tmp_path / "out" / "data" / "preferences.json").read_text()) == figures


def test_ranks_share_the_trees_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    trees = searched(tmp_path, GROWN, GROWN[:2], GROWN[:2])
    check_shares_and_resumes(ValuePairs(trees, PROTOCOL, unit=1), tmp_path)


def test_chosen_turns_are_episodes_that_train_each_of_them_once(tmp_path: Path) -> None:
    """Three turns are chosen in four pairs; what came before the chosen evidence is context."""
    run(ValuePairs(searched(tmp_path, GROWN), PROTOCOL), tmp_path / "out")
    found = run(SftOnChosen(tmp_path / "out"), tmp_path / "chosen")
    assert found == {"chosen/turns": 3, "chosen/questions": 1}
    rows = read_rows(tmp_path / "chosen" / "data" / "episodes.jsonl", "episode/1")
    episodes = [episode_from_row(row) for row in rows]
    assert [[turn.trainable for turn in episode.turns] for episode in episodes] == [[True], [True], [False, True]]
    trained = [sequence for episode in episodes for sequence in episode.sequences()]
    assert [len(sequence.ids) - sum(sequence.loss_mask) for sequence in trained] == [
        len(turn.context_ids or ()) + 1 for episode in episodes for turn in episode.turns[-1:]
    ]
    write_rows(tmp_path / "empty" / "data" / "pairs.jsonl", [])
    with pytest.raises(DataError, match="no pair, so no turn was chosen"):
        run(SftOnChosen(tmp_path / "empty"), tmp_path / "nothing")


def test_settings_out_of_range_are_refused(tmp_path: Path) -> None:
    for settings in ({"unit": 0}, {"min_gap": 0.0}, {"min_gap": 1.5}):
        with pytest.raises(ConfigError, match=r"unit must be at least 1, min_gap in \(0, 1\]"):
            ValuePairs(tmp_path, PROTOCOL, **settings)  # type: ignore[arg-type]

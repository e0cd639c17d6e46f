"""A search by other rules: UCT, one child at a time, and values from a judge in place of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from datamodules.tree.node import Tree
from datamodules.tree.selection import OneAtATime, Uct
from datamodules.tree.values import SPRE, AnswerScore, DiscountedMean, Leaf
from envs.protocols.prorag import ProRAG
from tests.growing import ANSWER, BOOK, DOCUMENTS, QUERY, SUB, Book, Counted, Failing, child, grown, said, searcher
from tests.tiny import FixedRetriever


class Judge:
    """Values a step by its text, without a rollout; None where it is out."""

    rollouts = 0

    def __init__(self, **marks: float | None) -> None:
        self.marks, self.judged = marks, []

    def __call__(self, leaves: Sequence[Leaf]) -> list[float | None]:
        steps = [leaf.episode.turns[-1].action.text for leaf in leaves]
        self.judged += steps
        return [self.marks[step] for step in steps]


def judged(protocol: ProRAG, book: Book, judge: Judge, **settings: Any) -> tuple[Tree, Counted, Counted]:
    expander, simulator = Counted(protocol, book), Counted(protocol, book)
    rules: dict[str, Any] = {"selection": Uct(), "width": OneAtATime(2), "leaf_value": judge}
    tree = grown(searcher(protocol, expander, simulator, backup=DiscountedMean(1.0), **rules | settings))
    return tree, expander, simulator


def test_four_simulations_worked_by_hand(protocol: ProRAG) -> None:
    """1, 2: the root gets q (.8) and x (.1). 3: UCT, ln 2: q .8 + 1.18 against x .1 + 1.18; q gets Ada (.9).

    4: ln 3: q .85 + 1.05 against x .1 + 1.48; q gets Bob (.2).
    """
    judge = Judge(q=0.8, x=0.1, Ada=0.9, Bob=0.2)
    tree, expander, simulator = judged(protocol, BOOK, judge, simulations=4)
    assert [("/".join(map(said, path[1:])), path[-1].visits, path[-1].value) for path in tree.paths()] == [
        ("", 4, pytest.approx(0.5)),
        ("q", 3, pytest.approx(1.9 / 3)),
        ("q/Ada", 1, 0.9),
        ("q/Bob", 1, 0.2),
        ("x", 1, 0.1),
    ]
    assert (expander.calls, simulator.calls) == ([1, 1, 1, 1], [])
    assert tree.counts == {"expansions": 4, "simulations": 4, "terminal": 0, "dead": 0, "failures": 0}


def test_the_end_of_an_episode_is_valued_once(protocol: ProRAG) -> None:
    judge = Judge(x=0.7)
    tree, expander, _ = judged(protocol, {(): [ANSWER.format("x")]}, judge, width=lambda node: int(not node.children))
    assert (tree.root.visits, tree.root.value, judge.judged) == (32, pytest.approx(0.7), ["x"])
    assert expander.calls == [1]


def test_a_child_that_is_sampled_again_is_visited_again_and_not_searched_again(protocol: ProRAG) -> None:
    book: Book = {(): [QUERY.format("q"), QUERY.format("q"), ANSWER.format("x")]}
    retriever, judge = FixedRetriever(DOCUMENTS), Judge(q=0.8, x=0.1)
    rules: dict[str, Any] = {"width": OneAtATime(2, samples=3), "prior": "count"}
    tree, *_ = judged(protocol, book, judge, retriever=retriever, simulations=3, **rules)
    assert [(said(n), n.multiplicity, n.prior, n.visits) for n in tree.root.children] == [
        ("q", 2, pytest.approx(2 / 3), 2),
        ("x", 1, pytest.approx(1 / 3), 1),
    ]
    assert (retriever.queries, judge.judged) == (["q"], ["q", "q", "x"])


def test_a_node_whose_next_child_fails_keeps_those_it_has(protocol: ProRAG) -> None:
    book: Book = {(): [SUB.format("so"), QUERY.format("down"), SUB.format("then")]}
    retriever = Failing(lambda queries: "down" in queries)
    tree, *_ = judged(protocol, book, Judge(so=0.5, then=0.5), retriever=retriever, simulations=3)
    assert ([said(n) for n in tree.root.children], tree.root.dead, tree.root.visits) == (["so", "then"], False, 2)
    assert tree.counts["failures"] == 1


def test_several_rollouts_a_leaf_give_their_mean_and_failed_ones_are_left_out(protocol: ProRAG) -> None:
    book: Book = {("so",): [ANSWER.format("Ada"), ANSWER.format("Bob"), QUERY.format("down"), ANSWER.format("Ada")]}
    simulator = Counted(protocol, book)
    search = searcher(
        protocol, Counted(protocol, {(): [SUB.format("so")]}), simulator, simulations=1, children=1, discount=0.5,
        retriever=Failing(lambda queries: "down" in queries), leaf_value=AnswerScore(rollouts=4),
    )  # fmt: skip
    tree = grown(search)
    assert child(tree, "so").value == pytest.approx(0.5 * 2 / 3)
    assert (simulator.calls, tree.counts["failures"], tree.counts["simulations"]) == ([4], 1, 1)


def test_a_policy_that_is_sure_of_a_step_is_searched_below_it(protocol: ProRAG) -> None:
    """The root's two samples are one step: it gets no third, or the search would never leave the root."""
    tree, expander, _ = judged(
        protocol, {(): [QUERY.format("q")], ("q",): [ANSWER.format("Ada")]}, Judge(q=0.8, Ada=0.9), simulations=5
    )
    assert [("/".join(map(said, path[1:])), path[-1].multiplicity, path[-1].visits) for path in tree.paths()] == [
        ("", 1, 5),
        ("q", 2, 5),
        ("q/Ada", 2, 3),
    ]
    assert expander.calls == [1, 1, 1, 1], "the last selection reached the end of an episode"


def test_a_leaf_that_could_not_be_judged_changes_nothing_and_is_searched_below(protocol: ProRAG) -> None:
    judge = Judge(q=None, x=0.1, Ada=0.9, Bob=0.2)
    tree, *_ = judged(protocol, BOOK, judge, simulations=3)
    assert [("/".join(map(said, path[1:])), path[-1].visits, path[-1].value) for path in tree.paths()] == [
        ("", 2, pytest.approx(0.5)),
        ("q", 1, 0.9),
        ("q/Ada", 1, 0.9),
        ("x", 1, 0.1),
    ]
    assert tree.counts["simulations"] == 2


def test_an_end_that_could_not_be_judged_is_not_selected_again(protocol: ProRAG) -> None:
    judge = Judge(q=0.8, x=None, Ada=0.9, Bob=0.2)
    tree, *_ = judged(protocol, BOOK, judge, simulations=8)
    assert (child(tree, "x").status, child(tree, "x").outcome, child(tree, "x").visits) == ("answered", None, 0)
    assert judge.judged.count("x") == 1
    assert child(tree, "q").visits == tree.root.visits == 7


def test_spre_is_the_mean_of_four_rollouts_and_of_an_end_its_own(protocol: ProRAG) -> None:
    """Below q: Ada after three turns, Ada Lovelace (F1 2/3) after three, Bob, and Ada again; q/Ada ends at once."""
    book: Book = {
        (): [QUERY.format("q")],
        ("q",): [SUB.format("Ada")],
        ("q", "Ada"): [ANSWER.format(text) for text in ("Ada", "Ada Lovelace", "Bob", "Ada")],
    }
    expander, simulator = Counted(protocol, book), Counted(protocol, book)
    rules: dict[str, Any] = {"selection": Uct(), "width": OneAtATime(1), "leaf_value": SPRE()}
    tree = grown(searcher(protocol, expander, simulator, backup=DiscountedMean(1.0), simulations=1, **rules))
    assert (child(tree, "q").value, tree.root.value) == (pytest.approx((1 + 2 / 3 + 1) / 4 * 0.9**3),) * 2
    assert simulator.calls == [4, 4]
    book = {(): [QUERY.format("q")], ("q",): [ANSWER.format("Ada")]}
    expander, simulator = Counted(protocol, book), Counted(protocol, book)
    tree = grown(searcher(protocol, expander, simulator, backup=DiscountedMean(1.0), simulations=3, **rules))
    assert child(tree, "q", "Ada").outcome == pytest.approx(0.9**2)
    assert tree.root.value == pytest.approx(0.9**2)

from __future__ import annotations

import pytest

from common.errors import RetrievalError
from envs.protocols.prorag import ProRAG
from tests.growing import ANSWER, QUERY, SUB, Book, Counted, Failing, child, grown, searcher
from tests.tiny import question


def test_an_expansion_that_fails_twice_is_not_selected_again_and_is_worth_nothing(protocol: ProRAG) -> None:
    book: Book = {(): [QUERY.format("a"), ANSWER.format("Ada")], ("a",): [QUERY.format("b")]}
    retriever = Failing(lambda queries: "b" in queries)
    expander = Counted(protocol, book)
    search = searcher(
        protocol, expander, Counted(protocol, {}), retriever=retriever, simulations=20, children=2, c_puct=99.0,
        prior="uniform",
    )  # fmt: skip
    tree = grown(search)
    dead = child(tree, "a")
    assert dead.dead
    assert dead.visits == 1  # of its own simulation
    assert expander.asked[("a",)] == 4  # expanded twice, K 2
    assert tree.counts == {"expansions": 3, "simulations": 1, "terminal": 17, "dead": 1, "failures": 4}
    assert tree.root.visits == 18


def test_a_step_below_which_all_is_dead_is_dead_too_and_the_search_goes_elsewhere(protocol: ProRAG) -> None:
    book: Book = {
        (): [QUERY.format("a"), ANSWER.format("x")],
        ("a",): [QUERY.format("b")],
        ("a", "b"): [QUERY.format("down")],
    }
    retriever = Failing(lambda queries: "down" in queries)
    tree = grown(
        searcher(
            protocol, Counted(protocol, book), Counted(protocol, {}), retriever=retriever,
            simulations=30, children=2, c_puct=99.0, prior="uniform",
        )
    )  # fmt: skip
    assert child(tree, "a", "b").dead
    assert child(tree, "a").dead
    assert tree.root.visits == 28  # all but the failed expansions


def test_a_tree_whose_first_step_cannot_be_retrieved_ends_there(protocol: ProRAG) -> None:
    search = searcher(
        protocol, Counted(protocol, {}, QUERY.format("a")), Counted(protocol, {}), retriever=Failing(lambda _: True),
        simulations=9, children=3,
    )  # fmt: skip
    tree = grown(search)
    assert tree.root.dead
    assert (tree.root.visits, tree.root.children) == (0, [])
    assert tree.counts["failures"] == 6


def test_one_failed_call_leaves_no_tree_empty(protocol: ProRAG) -> None:
    """All trees of a chunk search in one call."""
    calls: list[int] = []

    def first(queries: list[str]) -> bool:
        calls.append(len(queries))
        return len(calls) == 1

    search = searcher(
        protocol, Counted(protocol, {(): [QUERY.format("a")]}), Counted(protocol, {}), retriever=Failing(first),
        simulations=9, children=1,
    )  # fmt: skip
    trees = search.grow([question(identity=name) for name in "abcd"])
    assert calls[0] == 4
    assert [len(tree.root.children) for tree in trees] == [1] * 4
    assert [(tree.root.dead, tree.root.visits, tree.counts["failures"]) for tree in trees] == [(False, 8, 1)] * 4


def test_the_bar_of_progress_counts_every_selection(protocol: ProRAG) -> None:
    """Of 20, most choose an answer again that has its value already."""
    ticks = list[int]()
    book: Book = {(): [QUERY.format("a"), ANSWER.format("Ada")]}
    searcher(protocol, Counted(protocol, book), Counted(protocol, {}), simulations=20, children=2).grow(
        [question(), question()], ticks.append
    )
    assert sum(ticks) == 40


def test_a_failed_simulation_is_counted_and_never_becomes_a_value(protocol: ProRAG) -> None:
    book: Book = {(): [SUB.format("guess")]}
    search = searcher(
        protocol, Counted(protocol, book), Counted(protocol, {}, QUERY.format("b")),
        retriever=Failing(lambda queries: queries == ["b"]), simulations=2, children=1,
    )  # fmt: skip
    tree = grown(search)
    assert tree.counts["failures"] == 2
    assert (tree.root.visits, tree.root.children[0].visits) == (0, 0)


def test_a_retriever_that_stays_down_ends_the_search(protocol: ProRAG) -> None:
    search = searcher(
        protocol, Counted(protocol, {}, QUERY.format("a")), Counted(protocol, {}), retriever=Failing(lambda _: True)
    )
    search.grow([question(identity="a")])  # two calls
    with pytest.raises(RetrievalError, match="3 failed calls in a row"):
        search.grow([question(identity="b")])

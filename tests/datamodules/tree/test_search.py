from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from common.errors import ConfigError
from datamodules.tree.node import Tree
from envs.protocols.direct import Direct
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.token_ids import fingerprint
from envs.types import Episode, Turn
from tests.growing import ANSWER, BOOK, DOCUMENTS, QUERY, SUB, Book, Counted, child, grown, said, searcher
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question


def test_a_search_of_three_simulations_worked_by_hand(protocol: ProRAG) -> None:
    """Uniform priors, K 2, c 1, discount 0.5.

    1: the root is expanded to q and x; q is drawn and played out: Ada at depth 3, outcome 1.
       q: 0.5^2 = 0.25, N 1; root: 0.5^3 = 0.125, N 1.
    2: scores: q 0.25 + 0.5 * 1 / 2 = 0.5, x 0 + 0.5 * 1 / 1 = 0.5: a tie goes to the first. q was visited: it is
       expanded to Ada and Bob; the one drawn is played out to depth 3.
    3: depends on that draw, so the draw is read from the tree and both ways are written down.
    """
    expander, simulator = Counted(protocol, BOOK), Counted(protocol, BOOK)
    seed = next(s for s in range(99) if _draws(protocol, s) == ["q", "Ada"])
    tree = grown(
        searcher(
            protocol,
            expander,
            simulator,
            seed=seed,
            simulations=3,
            children=2,
            c_puct=1.0,
            discount=0.5,
            prior="uniform",
        )
    )
    # 3: q has 0.25, N 2: 0.25 + 0.5 * sqrt(2) / 3 = 0.486; x: 0.5 * sqrt(2) = 0.707. x is over: its outcome is 0.
    assert [(said(n), n.visits, n.value) for n in (tree.root, *tree.root.children)] == [
        ("", 3, pytest.approx((0.125 + 0.125) / 3)),
        ("q", 2, pytest.approx(0.25)),
        ("x", 1, 0.0),
    ]
    assert [(said(n), n.visits, n.value) for n in child(tree, "q").children] == [("Ada", 1, 0.5), ("Bob", 0, 0.0)]
    assert tree.counts == {"expansions": 2, "simulations": 2, "terminal": 1, "dead": 0, "failures": 0}
    assert child(tree, "x").status == "answered"
    assert child(tree, "x").outcome == 0.0
    assert child(tree, "q").status is None


def _draws(protocol: ProRAG, seed: int) -> list[str]:
    """Which child each of the first two expansions goes on to."""
    drawn = []
    tree = grown(
        searcher(protocol, Counted(protocol, BOOK), Counted(protocol, BOOK), seed=seed, simulations=1, children=2)
    )
    drawn += [said(n) for n in tree.root.children if n.visits]
    tree = grown(
        searcher(
            protocol, Counted(protocol, BOOK), Counted(protocol, BOOK), seed=seed, simulations=2, children=2,
            c_puct=1.0, discount=0.5, prior="uniform",
        )
    )  # fmt: skip
    return drawn + [said(n) for q in tree.root.children for n in q.children if n.visits]


def test_a_tree_and_its_episodes_say_whose_token_ids_they_hold(protocol: ProRAG) -> None:
    tree = grown(searcher(protocol, Counted(protocol, BOOK), Counted(protocol, BOOK), simulations=1))
    made_by = fingerprint(protocol.codec.tokenizer)
    assert {tree.tokenizer, *(tree.episode(path).tokenizer for path in tree.paths())} == {made_by}


def test_the_released_codes_discount_leaves_out_what_was_played(protocol: ProRAG) -> None:
    book: Book = {(): [QUERY.format("q")], ("q",): [SUB.format("Ada")], ("q", "Ada"): [ANSWER.format("Ada")]}
    values = {}
    for paper in (True, False):
        tree = grown(
            searcher(
                protocol, Counted(protocol, book), Counted(protocol, book),
                simulations=1, discount=0.5, count_rollout=paper,
            )
        )  # fmt: skip
        values[paper] = tree.root.value, tree.root.children[0].value
    assert values == {True: (0.125, 0.25), False: (0.5, 1.0)}


def test_an_outcome_may_be_how_right_an_answer_is(protocol: ProRAG) -> None:
    """Of the answer Ada Lovelace, where Ada is right, half is: F1 2/3; played out and read off a leaf alike."""
    book: Book = {(): [SUB.format("so")], ("so",): [ANSWER.format("Ada Lovelace")]}
    values = {}
    for score in ("exact", "f1"):
        tree = grown(
            searcher(
                protocol, Counted(protocol, book), Counted(protocol, book),
                simulations=3, children=1, discount=0.5, score=score,
            )
        )  # fmt: skip
        values[score] = tree.root.value, child(tree, "so", "Ada Lovelace").outcome
    assert values == {"exact": (0.0, 0.0), "f1": (pytest.approx(2 / 3 / 4), pytest.approx(2 / 3))}


def test_an_unvisited_leaf_is_played_out_and_only_a_visited_one_expanded(protocol: ProRAG) -> None:
    book: Book = {(): [QUERY.format("a"), QUERY.format("b")]}
    expander, simulator = Counted(protocol, book), Counted(protocol, book)
    tree = grown(searcher(protocol, expander, simulator, simulations=2, children=2, prior="uniform"))
    assert [n.visits for n in tree.root.children] == [1, 1]
    assert expander.calls == [2]
    assert simulator.calls == [1, 1]


def test_a_terminal_leaf_selected_again_generates_nothing(protocol: ProRAG) -> None:
    book: Book = {(): [ANSWER.format("Ada")]}
    expander, simulator = Counted(protocol, book), Counted(protocol, book)
    tree = grown(searcher(protocol, expander, simulator, simulations=9, children=3, discount=0.5))
    assert (expander.calls, simulator.calls) == ([3], [])
    assert (tree.root.visits, tree.root.value) == (9, 0.5)
    assert (tree.root.children[0].visits, tree.root.children[0].value) == (9, 1.0)
    assert tree.counts["terminal"] == 8


def test_identical_siblings_are_one_with_their_multiplicity_and_search_once(protocol: ProRAG) -> None:
    book: Book = {(): [QUERY.format("a"), QUERY.format("b"), QUERY.format("a"), QUERY.format("a")]}
    retriever = FixedRetriever(DOCUMENTS)
    tree = grown(
        searcher(
            protocol, Counted(protocol, book), Counted(protocol, book),
            retriever=retriever, simulations=1, children=4, prior="count",
        )
    )  # fmt: skip
    assert [(said(n), n.multiplicity, n.prior) for n in tree.root.children] == [("a", 3, 0.75), ("b", 1, 0.25)]
    assert retriever.queries == ["a", "b"]


def test_at_the_greatest_depth_an_episode_is_over_and_worth_nothing(protocol: ProRAG) -> None:
    forever = Counted(protocol, {}, default=QUERY.format("more"))
    tree = grown(searcher(protocol, forever, forever, depth=2, simulations=6, children=2))
    leaf = child(tree, "more", "more")
    assert (leaf.status, leaf.outcome, leaf.children) == ("step_budget", 0.0, [])
    assert tree.root.visits == 6
    assert tree.root.value == 0.0
    assert max(len(path) for path in tree.paths()) == 3


def test_a_prompt_without_room_is_over_at_once(protocol: ProRAG) -> None:
    nobody = Counted(protocol, {})
    tree = grown(searcher(protocol, nobody, nobody, total_tokens=3, simulations=4))
    assert (tree.root.status, tree.root.outcome, tree.root.visits) == ("token_budget", 0.0, 4)
    assert nobody.calls == []


def test_virtual_losses_spread_the_selections_of_a_round(protocol: ProRAG) -> None:
    book: Book = {(): [QUERY.format(letter) for letter in "abcd"]}
    alone, together = Counted(protocol, book), Counted(protocol, book)
    settings: dict[str, Any] = {"simulations": 4, "children": 4, "prior": "uniform"}
    grown(searcher(protocol, Counted(protocol, book), alone, parallel=1, **settings))
    tree = grown(searcher(protocol, Counted(protocol, book), together, parallel=3, **settings))
    assert alone.calls == [1, 1, 1, 1]
    assert together.calls == [1, 3]  # the root alone can be selected first, then three children at once
    assert [n.visits for n in tree.root.children] == [1, 1, 1, 1]


def test_virtual_losses_leave_no_trace(protocol: ProRAG) -> None:
    trees = [
        grown(
            searcher(protocol, Counted(protocol, BOOK), Counted(protocol, BOOK), parallel=p, simulations=30, children=2)
        )
        for p in (1, 4)
    ]
    for tree in trees:
        assert tree.root.visits == 30
        for path in tree.paths():
            assert sum(n.visits for n in path[-1].children) <= path[-1].visits


def test_every_fork_has_random_numbers_of_its_own_and_shared_turns_one_name(protocol: ProRAG) -> None:
    seen: list[Request] = []

    class Seeded(Counted):
        def take(self, request: Request) -> Turn:
            seen.append(request)
            turn = super().take(request)
            turn.uid = request.episode.next_uid()
            return turn

    both = Seeded(protocol, {**BOOK, (): [QUERY.format(str(i)) for i in range(9)]}, SUB.format("so"))
    tree = grown(searcher(protocol, both, both, simulations=20, children=3, depth=4))
    assert len({request.seed for request in seen}) == len(seen)
    uids = [path[-1].turn.uid for path in tree.paths() if path[-1].turn]
    assert len(set(uids)) == len(uids)


def test_finished_episodes_are_released(protocol: ProRAG) -> None:
    class Keeper(Counted):
        """Remembers which episodes it would keep a cache for."""

        def __init__(self, book: Book) -> None:
            super().__init__(protocol, book)
            self.kept: dict[int, Episode] = {}

        def submit(self, requests: Sequence[Request]) -> None:
            self.kept |= {id(request.episode): request.episode for request in requests}
            super().submit(requests)

        def release(self, episodes: Sequence[Episode]) -> None:
            for episode in episodes:
                self.kept.pop(id(episode), None)

    one, two = Keeper(BOOK), Keeper(BOOK)
    grown(searcher(protocol, one, one, simulations=12, children=2))
    grown(searcher(protocol, two, Counted(protocol, BOOK), simulations=12, children=2))
    assert (one.kept, two.kept) == ({}, {})


def test_trees_do_not_depend_on_their_neighbours(protocol: ProRAG) -> None:
    def tree(*identities: str) -> Tree:
        # The book's lines are dealt out by path, so every tree gets a book of its own through the question.
        class Own(Counted):
            def _line(self, episode: Episode) -> str:
                path = tuple(turn.action.text for turn in episode.turns)
                lines = self.book.get(path, [self.default])
                return lines[episode.sample % len(lines)]

        own = Own(protocol, BOOK)
        questions = [question(identity=identity) for identity in identities]
        return searcher(protocol, own, own, simulations=15, children=2).grow(questions)[-1]

    assert tree("a", "b", "c") == tree("c")


def test_a_protocol_that_takes_turns_of_its_own_is_refused() -> None:
    direct = Direct(byte_tokenizer(), retrieve=True)  # type: ignore[arg-type]
    nobody = Scripted(direct.codec.control, lambda _: "x")
    with pytest.raises(ConfigError, match="Direct takes turns of its own"):
        grown(searcher(direct, nobody, nobody))

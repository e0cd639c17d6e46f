"""Whole searches, frozen: every node's figures, so that a change of the search that moves any of them is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datamodules.tree.node import Tree
from envs.protocols.prorag import ProRAG
from tests.growing import ANSWER, BOOK, QUERY, SUB, Book, Counted, Failing, grown, said, searcher

GOLDEN = Path(__file__).parent / "golden_trees.json"
# Two hops, a dead end, an answer that is right by half, a retrieval that fails, and a sibling sampled twice.
DEEP: Book = {
    **BOOK,
    (): [QUERY.format("q"), QUERY.format("down"), ANSWER.format("x"), QUERY.format("q"), SUB.format("so")],
    ("down",): [QUERY.format("lost")],
    ("q", "Ada"): [QUERY.format("more"), ANSWER.format("Ada")],
    ("q", "Ada", "more"): [ANSWER.format("Ada Lovelace"), ANSWER.format("Ada")],
}
SEARCHES: dict[str, dict[str, Any]] = {
    "paper": {"simulations": 24, "children": 5},
    "released_code": {
        "simulations": 24, "children": 5, "prior": "uniform", "count_rollout": False, "score": "f1",
    },
    "three_at_once": {"simulations": 24, "children": 3, "parallel": 3, "prior": "count", "c_puct": 1.0},
}  # fmt: skip


def figures(tree: Tree) -> list[list[Any]]:
    """What the search knows of every node, depth first, each under the path of its actions."""
    return [
        ["/".join(map(said, path[1:])), node.visits, node.value, node.prior, node.multiplicity, node.status,
         node.outcome, node.dead]
        for path in tree.paths()
        for node in path[-1:]
    ]  # fmt: skip


@pytest.mark.parametrize("name", SEARCHES)
def test_a_whole_search_is_the_one_that_was_frozen(protocol: ProRAG, name: str) -> None:
    expander, simulator = Counted(protocol, DEEP), Counted(protocol, BOOK, default=ANSWER.format("Ada"))
    retriever = Failing(lambda queries: "lost" in queries)
    tree = grown(searcher(protocol, expander, simulator, retriever=retriever, **SEARCHES[name]))
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    assert (tree.counts, figures(tree)) == (expected["counts"], expected["nodes"])

"""Labels of the steps of a tree, against numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import DataError
from datamodules.tree.labels import rollouts, tree_backup
from datamodules.tree.node import Node, Tree
from datamodules.tree.selection import OneAtATime, Uct
from datamodules.tree.values import SPRE, DiscountedMean
from envs.protocols.prorag import ProRAG
from tests.growing import ANSWER, QUERY, SUB, Book, Counted, child, grown, searcher

BOOK: Book = {
    (): [QUERY.format("q"), ANSWER.format("Bob")],
    ("q",): [SUB.format("Ada"), ANSWER.format("Ada Lovelace")],
    ("q", "Ada"): [ANSWER.format("Ada"), ANSWER.format("Bob")],
}


def searched(protocol: ProRAG, **settings: Any) -> Tree:
    rules: dict[str, Any] = {"selection": Uct(), "width": OneAtATime(2), "leaf_value": SPRE(rollouts=2)}
    rules |= {"backup": DiscountedMean(1.0), "simulations": 12} | settings
    return grown(searcher(protocol, Counted(protocol, BOOK), Counted(protocol, BOOK), **rules))


def test_the_rollouts_of_a_node_are_told_from_those_below_it(protocol: ProRAG) -> None:
    """Values as they were backed up, node by node, are kept beside the tree and compared with what is left over."""
    own: dict[int, list[float]] = {}

    class Watched(DiscountedMean):
        def __call__(self, path: Any, value: float, end: int) -> list[tuple[float, int]]:
            own.setdefault(id(path[-1]), []).append(value)
            return super().__call__(path, value, end)

    tree = searched(protocol, backup=Watched(1.0))
    labels = rollouts(tree, protocol)
    assert set(own) == set(labels), "the root has no rollouts of its own"
    assert len(own) >= 5
    for node, values in own.items():
        assert labels[node] == pytest.approx(sum(values) / len(values), abs=1e-8)
    nodes = {id(path[-1]): path[-1] for path in tree.paths()}
    assert any(abs(labels[node] - nodes[node].value) > 0.01 for node in own), "values hold what is below, labels do not"


def test_by_hand_a_label_is_the_estimate_and_not_the_mean_below(protocol: ProRAG) -> None:
    below = [Node(visits=1, value=0.3), Node(visits=2, value=0.6)]
    tree = searched(protocol)
    tree.root = Node(children=[Node(visits=4, value=0.5, children=below), Node(), Node(visits=3, outcome=0.81)])
    labels = rollouts(tree, protocol)
    first, unvisited, end = tree.root.children
    assert labels[id(first)] == pytest.approx((4 * 0.5 - 0.3 - 1.2) / 1)
    assert id(unvisited) not in labels
    assert labels[id(end)] == 0.81
    assert labels[id(below[1])] == 0.6


def test_values_that_are_no_plain_means_are_refused(protocol: ProRAG) -> None:
    """As with a discount, which makes a node worth less than what is below it."""
    tree = searched(protocol)
    tree.root = Node(children=[Node(visits=3, value=0.2, children=[Node(visits=2, value=0.9)])])
    with pytest.raises(DataError, match=r"tree of question q1: a step's own value is -1\.2, so the values"):
        rollouts(tree, protocol)


def test_the_tree_alone_gives_the_mean_of_the_ends_below_by_their_visits(protocol: ProRAG) -> None:
    tree = searched(protocol)
    labels = tree_backup(tree, protocol, alpha=0.5)
    assert labels[id(child(tree, "Bob"))] == 0
    assert labels[id(child(tree, "q", "Ada Lovelace"))] == pytest.approx(2 / 3 * 0.25)
    right, wrong, half = (
        child(tree, *path) for path in (("q", "Ada", "Ada"), ("q", "Ada", "Bob"), ("q", "Ada Lovelace"))
    )
    sub, query = child(tree, "q", "Ada"), child(tree, "q")
    assert labels[id(right)] == 0.125
    expected = right.visits * 0.125 / (right.visits + wrong.visits)
    assert labels[id(sub)] == pytest.approx(expected)
    expected = (sub.visits * expected + half.visits * 2 / 3 * 0.25) / (sub.visits + half.visits)
    assert labels[id(query)] == pytest.approx(expected)
    assert tree_backup(tree, protocol)[id(right)] == pytest.approx(0.9**3)


def test_without_an_end_below_a_node_has_no_label(protocol: ProRAG) -> None:
    tree = searched(protocol)
    tree.root = Node(children=[Node(visits=3, value=0.7, children=[Node(visits=2, value=0.5)]), Node()])
    assert tree_backup(tree, protocol) == {}

"""Values of a search tree's steps as labels of preferences; they need not be the values that guided the search.

Both are ReasonRAG's (arXiv 2505.14069): the paper's estimate, and what its released code takes in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import fsum

from common.answers import f1_score
from common.errors import DataError
from datamodules.tree.node import Node, Tree
from envs.interfaces import AgentFormat

# (tree, its protocol) -> label of each node by `id`; a node without a label has no entry.
Labels = Callable[[Tree, AgentFormat], Mapping[int, float]]

_DIGITS = 9  # of a label: what is left of a difference of sums is rounding


def rollouts(tree: Tree, protocol: AgentFormat) -> dict[int, float]:
    """Mean value of a node's own rollouts; the outcome where an episode ends in it.

    A node's value is the plain mean of its own values and those of the nodes below it, so its own are what is left when
    those below are taken away. With `datamodules.tree.values.SPRE` as leaf value this is the paper's estimate.

    Raises:
        DataError: the values are no plain means.
    """
    labels: dict[int, float] = {}
    for path in tree.paths():
        node = path[-1]
        if node is tree.root:
            continue  # nobody chose it
        own = node.visits - sum(child.visits for child in node.children)
        if node.outcome is not None:
            labels[id(node)] = round(node.outcome, _DIGITS)
        elif own > 0:
            rest = node.value * node.visits - fsum(child.value * child.visits for child in node.children)
            labels[id(node)] = round(rest / own, _DIGITS) + 0.0  # never -0
            if not 0 <= labels[id(node)] <= 1:
                raise DataError(
                    f"tree of question {tree.question.id}: a step's own value is {labels[id(node)]:.3g}, so the values "
                    "are no plain means: search with backup {target: datamodules.tree.values:DiscountedMean, "
                    "discount: 1.0}, or label with datamodules.tree.labels:tree_backup"
                )
    return labels


def tree_backup(tree: Tree, protocol: AgentFormat, *, alpha: float = 0.9) -> dict[int, float]:
    """F1 of the answer · alpha^depth where an episode ends; elsewhere the mean over labelled children by their visits.

    It needs no rollouts, so the search may be guided by any value. Without an end below, a node has no label.
    """
    labels: dict[int, float] = {}
    for path in reversed(list(tree.paths())):  # children before their parents
        node = path[-1]
        if node.status is not None:
            answer = protocol.answer(tree.episode(path))
            labels[id(node)] = f1_score(answer, tree.question.answers) * alpha ** (len(path) - 1)
        elif (label := _mean_by_visits(node, labels)) is not None:
            labels[id(node)] = label
    return {key: round(label, _DIGITS) for key, label in labels.items()}


def _mean_by_visits(node: Node, labels: Mapping[int, float]) -> float | None:
    """The mean label of the labelled children, each as often as it was visited; None without a visit."""
    known = [(labels[id(child)], child.visits) for child in node.children if id(child) in labels]
    visits = sum(count for _, count in known)
    return fsum(label * count for label, count in known) / visits if visits else None

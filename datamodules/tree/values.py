"""Values of leaves, and their backup along the path.

`TreeSearch` takes any leaf value and back-up of these types. ProRAG's are `AnswerScore` and `DiscountedMean`;
ReasonRAG's are `SPRE` and, with a model's opinion in place of rollouts, `systems.reasonrag.judged_value.JudgedValue`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor

from common.answers import exact_match, f1_score
from common.errors import ConfigError
from datamodules.tree.node import Node
from datamodules.tree.puct import backup
from envs.types import Episode

# (path from the root, value of its last node, turns at which the rollouts ended) -> new (value, visits) of each node.
Backup = Callable[[Sequence[Node], float, int], Sequence[tuple[float, int]]]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf to be valued: the episode that ends in it, and the finished episodes that were played out from it.

    Rollouts whose retrieval failed are left out. A leaf that ends its episode is its own only rollout.
    """

    episode: Episode
    rollouts: Sequence[Episode]


class LeafValue(typing.Protocol):
    """Values leaves, many in one call."""

    @property
    def rollouts(self) -> int:
        """Episodes to play out from a leaf before it is valued; 0 where its episode alone is judged."""
        ...

    def __call__(self, leaves: Sequence[Leaf]) -> Sequence[float | None]:
        """The value of every leaf, in order; None where a call failed, which changes nothing in the tree.

        A failed call is counted by the leaf value and never becomes a value.
        """
        ...


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """The mean score of the answers of a leaf's rollouts; 0 for an episode without an answer.

    Args:
        score: `exact`, 1 for a right answer and else 0 (the paper), or `f1` (its code).
        rollouts: episodes played out from a leaf; more than one need a simulator that samples.

    Raises:
        ConfigError: there are no rollouts.
    """

    score: Literal["exact", "f1"] = "exact"
    rollouts: int = 1

    def __post_init__(self) -> None:
        if self.rollouts < 1:
            raise ConfigError(f"rollouts is {self.rollouts}; it must be at least 1")

    def __call__(self, leaves: Sequence[Leaf]) -> list[float]:
        return [fmean(_scores(leaf, self.score)) for leaf in leaves]


def spre(values_N: Tensor | Sequence[float], steps_N: Tensor | Sequence[float], *, alpha: float = 0.9) -> Tensor:
    """Mean of value · alpha^steps over N rollouts, a float64 scalar: right answers after few steps are worth most.

    Source: ReasonRAG (arXiv 2505.14069), shortest path reward estimation.

    Args:
        values_N: `[N]` how right each rollout's answer is.
        steps_N: `[N]` steps of each whole episode, those before the rollout began among them.
        alpha: worth of an answer that comes one step later.

    Raises:
        ValueError: there are no rollouts, or not as many steps as values.
    """
    values_N, steps_N = (torch.as_tensor(x, dtype=torch.float64) for x in (values_N, steps_N))
    if values_N.shape != steps_N.shape:
        numbers = f"{values_N.numel()} values and {steps_N.numel()} steps"
        shapes = f"of shapes {list(values_N.shape)} and {list(steps_N.shape)}"
        raise ValueError(f"{numbers}, {shapes}: give the steps of each rollout")
    if not values_N.numel():
        raise ValueError("no rollouts: their mean value is not defined")
    return (values_N * alpha**steps_N).mean()


@dataclass(frozen=True, slots=True)
class SPRE:
    """A leaf's shortest path reward estimate, see `spre`; a step is a turn of the episode.

    It has its own discount: back it up with `DiscountedMean(discount=1)`.

    Args:
        score: `f1` (the paper) or `exact`.
        rollouts: episodes played out from a leaf (k); the simulator has to sample, or all of them are one.
        alpha: worth of an answer that comes one step later.

    Raises:
        ConfigError: there are no rollouts, or `alpha` is out of range.
    """

    score: Literal["exact", "f1"] = "f1"
    rollouts: int = 4
    alpha: float = 0.9

    def __post_init__(self) -> None:
        if self.rollouts < 1 or not 0 < self.alpha <= 1:
            raise ConfigError(
                f"rollouts is {self.rollouts}, alpha {self.alpha}; rollouts must be at least 1, alpha in (0, 1]"
            )

    def __call__(self, leaves: Sequence[Leaf]) -> list[float]:
        return [
            float(spre(_scores(leaf, self.score), [len(one.turns) for one in leaf.rollouts], alpha=self.alpha))
            for leaf in leaves
        ]


def _scores(leaf: Leaf, score: Literal["exact", "f1"]) -> list[float]:
    """Score of each rollout's answer.

    Raises:
        ValueError: there are no rollouts.
    """
    if not leaf.rollouts:  # the tree search asks for no value where all have failed
        raise ValueError("a leaf without rollouts has no value: play out at least one episode from it")
    metric = exact_match if score == "exact" else f1_score
    return [metric(episode.answer, episode.question.answers) for episode in leaf.rollouts]


@dataclass(frozen=True, slots=True)
class DiscountedMean:
    """A node's value is the mean of the values below it, each discounted by its distance (ProRAG Eq 3).

    Args:
        discount: of a value, for every step to the end.
        count_rollout: the end is that of the rollout (the paper); False: that of the path in the tree (its code).

    Raises:
        ConfigError: the discount is out of range.
    """

    discount: float = 0.99
    count_rollout: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.discount <= 1:
            raise ConfigError(f"discount is {self.discount}; it must be in (0, 1]")

    def __call__(self, path: Sequence[Node], value: float, end: int) -> list[tuple[float, int]]:
        end = end if self.count_rollout else len(path) - 1
        return [
            backup(node.value, node.visits, value, discount=self.discount, steps_to_end=end - depth)
            for depth, node in enumerate(path)
        ]

"""Rules of the descent through a tree: which child is selected, and how many children a node gets.

`TreeSearch` takes any callable of these types; the classes here are ProRAG's and ReasonRAG's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from common.errors import ConfigError
from datamodules.tree.node import Node
from datamodules.tree.puct import puct_scores
from datamodules.tree.uct import uct_scores

# (values, priors, visits) of a node's K children, and the node's own visits -> the scores of these children [K]; the
# highest is selected, the first of equals.
Selection = Callable[[Sequence[float], Sequence[float], Sequence[int], int], Tensor]

# A node that the descent has reached -> how many children to sample there now. 0 goes on to one of its children, or,
# where it has none, values the node itself.
Width = Callable[[Node], int]


@dataclass(frozen=True, slots=True)
class Puct:
    """Selection by `datamodules.tree.puct.puct_scores` (ProRAG, arXiv 2601.21912, Eq 2).

    Raises:
        ConfigError: `c_puct`, the weight of exploration, is negative.
    """

    c_puct: float = 2.5

    def __post_init__(self) -> None:
        if self.c_puct < 0:
            raise ConfigError(f"c_puct is {self.c_puct}; it must be at least 0")

    def __call__(self, values: Sequence[float], priors: Sequence[float], visits: Sequence[int], node: int) -> Tensor:
        return puct_scores(values, priors, visits, c_puct=self.c_puct)


@dataclass(frozen=True, slots=True)
class Uct:
    """Selection by `datamodules.tree.uct.uct_scores`: priors play no part, a child without a visit comes first.

    Source: ReasonRAG (arXiv 2505.14069), released code.

    Raises:
        ConfigError: `exploration`, the weight of exploration, is negative.
    """

    exploration: float = 1.414

    def __post_init__(self) -> None:
        if self.exploration < 0:
            raise ConfigError(f"exploration is {self.exploration}; it must be at least 0")

    def __call__(self, values: Sequence[float], priors: Sequence[float], visits: Sequence[int], node: int) -> Tensor:
        return uct_scores(values, visits, node, exploration=self.exploration)


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """All children are sampled together when a node is reached again after its first visit; the root's at once.

    Raises:
        ConfigError: there are no `children`, the samples of an expansion (K).
    """

    children: int = 4

    def __post_init__(self) -> None:
        if self.children < 1:
            raise ConfigError(f"children is {self.children}; it must be at least 1")

    def __call__(self, node: Node) -> int:
        is_root = node.turn is None
        return self.children if not node.children and (node.visits or is_root) else 0


@dataclass(frozen=True, slots=True)
class OneAtATime:
    """A node gets one more child each time that it is reached, up to `children`.

    A sample that repeats a child makes no new one. After `samples` of them the node gets no more: a policy that is sure
    of a step would else be asked for another without end, and the search would never go deeper.

    Source: ReasonRAG (arXiv 2505.14069), released code, which keeps repeated children.

    Args:
        children: the most that a node gets.
        samples: the most that are sampled for a node; None takes `children`.

    Raises:
        ConfigError: there are no `children`, or more of them than `samples`.
    """

    children: int = 2
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.children < 1 or (self.samples is not None and self.samples < self.children):
            raise ConfigError(
                f"children is {self.children}, samples {self.samples}; children must be at least 1, samples no fewer"
            )

    def __call__(self, node: Node) -> int:
        sampled = sum(child.multiplicity for child in node.children)
        most = self.children if self.samples is None else self.samples
        return int(len(node.children) < self.children and sampled < most)

"""Rules of the descent through a tree: which child is selected, and how many children a node gets.

`TreeSearch` takes any callable of these types; the classes here are ProRAG's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from common.errors import ConfigError
from datamodules.tree.node import Node
from datamodules.tree.puct import puct_scores

# (values, priors, visits) of a node's K children -> their scores [K]; the highest is selected, the first of equals.
Selection = Callable[[Sequence[float], Sequence[float], Sequence[int]], Tensor]

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

    def __call__(self, values: Sequence[float], priors: Sequence[float], visits: Sequence[int]) -> Tensor:
        return puct_scores(values, priors, visits, c_puct=self.c_puct)


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

"""The search tree: nodes are turns, paths from the root are episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from envs.types import Episode, Question, Status, Turn


@dataclass(slots=True)
class Node:
    """A turn and what the search knows of it; the root is a turn nobody took.

    Attributes:
        turn: None at the root.
        prior: the policy's probability of this step among its siblings.
        multiplicity: how many of the sampled siblings were this one.
        visits: how often an outcome was backed up through it (N).
        value: mean of those outcomes, discounted (Q).
        status: how the episode ended with this turn; None where it goes on.
        outcome: what it was worth, where it ended.
        dead: nothing came of expanding it; it is not selected again.
    """

    turn: Turn | None = None
    prior: float = 1.0
    multiplicity: int = 1
    visits: int = 0
    value: float = 0.0
    status: Status | None = None
    outcome: float | None = None
    dead: bool = False
    children: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Tree:
    """The search of one question.

    `counts` has `expansions`, `simulations` (outcomes of rollouts), `terminal` (outcomes read off a terminal leaf
    selected again), `dead` and `failures` (samples lost to a failed retrieval).
    """

    question: Question
    prompt_ids: tuple[int, ...]
    root: Node = field(default_factory=Node)
    counts: dict[str, int] = field(default_factory=dict)

    def episode(self, path: Sequence[Node], sample: int = 0) -> Episode:
        """The episode that a path from the root is; it shares the path's turns."""
        turns = [node.turn for node in path if node.turn is not None]
        return Episode(self.question, self.prompt_ids, turns, sample=sample, status=path[-1].status)

    def paths(self) -> Iterator[tuple[Node, ...]]:
        """The path to every node, the root's first, depth first."""
        stack: list[tuple[Node, ...]] = [(self.root,)]
        while stack:
            path = stack.pop()
            yield path
            stack += [(*path, child) for child in reversed(path[-1].children)]

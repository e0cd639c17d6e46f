"""The search tree: nodes are turns, paths from the root are episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from envs.types import Episode, Question, Status, Turn


@dataclass(slots=True)
class Node:
    """A turn, with the statistics of the search; the root has no turn.

    Attributes:
        turn: None at the root.
        prior: the policy's probability of this step among its siblings.
        multiplicity: how many samples of its parent were this step.
        visits: values backed up through it (N).
        value: mean of those values, discounted (Q).
        status: how the episode ended with this turn; None where it continues.
        outcome: value of the episode that ended here; None where it continues.
        dead: it cannot be expanded, it ended without a value, or all its children are dead; it is not selected again.
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

    `counts` has `expansions`, `simulations` (values backed up from a node that was played out or judged), `terminal`
    (values backed up again from the end of an episode), `dead` and `failures` (samples whose retrieval failed, and
    rollouts that ended in an error). `tokenizer` is as in an episode.
    """

    question: Question
    prompt_ids: tuple[int, ...]
    root: Node = field(default_factory=Node)
    counts: dict[str, int] = field(default_factory=dict)
    tokenizer: str = ""

    def episode(self, path: Sequence[Node], sample: int = 0) -> Episode:
        """The episode along a path from the root; it shares the path's turns."""
        turns = [node.turn for node in path if node.turn is not None]
        ids = {"prompt_ids": self.prompt_ids, "turns": turns, "tokenizer": self.tokenizer}
        return Episode(self.question, **ids, sample=sample, status=path[-1].status)

    def paths(self) -> Iterator[tuple[Node, ...]]:
        """The path to every node, the root's first, depth first."""
        stack: list[tuple[Node, ...]] = [(self.root,)]
        while stack:
            path = stack.pop()
            yield path
            stack += [(*path, child) for child in reversed(path[-1].children)]

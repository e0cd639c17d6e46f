"""Tree of Self-RAG: which segments there are, what comes next, and which path is best; read from an episode's turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from envs.requests import weighed_logps
from envs.types import Hit, Turn
from systems.self_rag.scores import Weights, relevance, retrieval, support, utility
from systems.self_rag.tokens import Group, Segment

RETRIEVE, ALONE, CONTINUE = 0, 1, 2  # where a segment's evidence comes from, as the Retrieve tokens are numbered
_OF_A_PASSAGE: tuple[Group, ...] = ("relevance", "support")
_OF_AN_ANSWER: tuple[Group, ...] = ("utility",)
_OF_A_GATE: tuple[Group, ...] = ("retrieval",)
SIZES: dict[Group, int] = {"retrieval": 2, "relevance": 2, "support": 3, "utility": 5}  # alternatives weighed


@dataclass(eq=False, slots=True)
class Node:
    """A segment below a passage or none; the root is the question, which no segment precedes.

    Attributes:
        way: where its evidence comes from.
        number: of its turn in the episode.
        logps: of the alternatives of each group that was found in it.
        score: product of the scores along the path.
    """

    parent: Node | None = None
    way: int = ALONE
    passage: Hit | None = None
    turn: Turn | None = None
    number: int = -1
    segment: Segment | None = None
    logps: dict[Group, list[float]] = field(default_factory=dict)
    score: float = 1.0

    @property
    def open(self) -> bool:
        """Whether something is to come after it."""
        return self.parent is None or (self.segment is not None and self.segment.continues)

    @property
    def text(self) -> str:
        """What it says."""
        return self.segment.text if self.segment else ""

    def path(self) -> list[Node]:
        """The segments from the first one to this."""
        return [] if self.parent is None else [*self.parent.path(), self]

    def missing(self) -> list[Group]:
        """The groups that it should have and has not, each of which scores 0."""
        due = (*(_OF_A_PASSAGE if self.passage else ()), *(() if self.open else _OF_AN_ANSWER))
        return [group for group in due if not self.logps.get(group)]


Asked = tuple[tuple[Node, Group, int], ...]


@dataclass(frozen=True, slots=True)
class Search:
    """A retrieval is due."""

    query: str


@dataclass(frozen=True, slots=True)
class Write:
    """A segment is due: this one; of the root the token that says whether to retrieve."""

    node: Node


@dataclass(frozen=True, slots=True)
class Weigh:
    """Log-probs are due: of the alternatives of a group at a token of a node."""

    asked: Asked


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is due."""


Due = Search | Write | Weigh | Ended


@dataclass(eq=False, slots=True)
class SegmentTree:
    """The tree so far: `nodes` are all that were written, the root's token among them, `kept` those of the beam."""

    nodes: list[Node] = field(default_factory=list)
    kept: list[Node] = field(default_factory=list)
    due: Due = field(default_factory=Ended)

    @property
    def best(self) -> Node:
        """The best path of the beam, by its last segment: finished ones first, then by score, the earlier of equals."""
        return max(self.kept, key=lambda node: (not node.open, node.score))


@dataclass(frozen=True)
class Rules:
    """How a tree grows; see `systems.self_rag.protocol:SelfRAG`."""

    depth: int
    beam: int
    passages: int | None
    threshold: float
    requery: bool
    written: bool
    weights: Weights
    official: bool
    read: Callable[[Turn], Segment]

    def grown(self, question: str, turns: Sequence[Turn]) -> SegmentTree:
        """The tree of an episode with these turns, and what is due in it."""
        tree = SegmentTree()
        growth = self._grow(question, tree)
        tree.due = next(growth)
        for number, turn in enumerate(turns):
            if isinstance(tree.due, Write):
                node = tree.due.node
                node.turn, node.number, node.segment = turn, number, self.read(turn)
                tree.nodes.append(node)
            tree.due = growth.send(turn)
        return tree

    def _grow(self, question: str, tree: SegmentTree) -> Generator[Due, Turn]:
        root = Node()
        tree.kept = [root]
        if self.written:
            yield Write(root)
        yield from self._weigh(tree.kept)
        hits: tuple[Hit, ...] | None = None
        for _ in range(self.depth):
            level = [node for node in tree.kept if not node.open]
            children: list[Node] = []
            for node in (node for node in tree.kept if node.open):
                way = self._way(node)
                if way == RETRIEVE and (hits is None or self.requery):
                    turn = yield Search(node.text or question)
                    hits = tuple(hit for hit in turn.hits if hit.shown != "")[: self.passages]
                passages = {RETRIEVE: hits or (None,), CONTINUE: (node.passage,)}.get(way, (None,))
                children += [Node(node, way if passage else ALONE, passage) for passage in passages]
            for child in children:
                yield Write(child)
            yield from self._weigh(children)
            for child in children:
                child.score = child.parent.score * self._score(child)  # pyright: ignore[reportOptionalMemberAccess]
            repeats = {id(one) for one in children if one.text in [node.text for node in one.path()[:-1]]}
            level += [child for child in children if id(child) not in repeats]
            if not children or not level:
                break
            tree.kept = sorted(level, key=lambda node: -node.score)[: self.beam]
        while True:
            yield Ended()

    def _weigh(self, nodes: Sequence[Node]) -> Generator[Due, Turn]:
        """Find the log-probs of every group of these nodes; in `written` mode those of tokens as sure as written."""
        asked: Asked = tuple((node, group, place) for node in nodes for group, place in _places(node))
        if self.written:
            for node, group, _ in asked:
                chosen = 0 if node.segment is None else node.segment.written[group]
                certain = [0.0 if number == chosen else -math.inf for number in range(SIZES[group])]
                node.logps[group] = certain if chosen is not None else []
        elif asked:
            turn = yield Weigh(asked)
            logps = weighed_logps(turn)
            for node, group, _ in asked:
                node.logps[group], logps = logps[: SIZES[group]], logps[SIZES[group] :]

    def _way(self, node: Node) -> int:
        if node.segment is not None and node.segment.written["retrieval"] == CONTINUE and node.parent is not None:
            return CONTINUE
        logps = node.logps.get("retrieval") or (-math.inf, 0.0)
        if self.written:
            return RETRIEVE if logps[0] == 0 else ALONE
        return RETRIEVE if retrieval(logps[0], logps[1], official=self.official) > self.threshold else ALONE

    def _score(self, node: Node) -> float:
        assert node.turn is not None
        ignored = self.official and self.depth > 1
        return self.weights.score(
            node.turn.action_logps,
            relevance=relevance(node.logps.get("relevance", ())),
            support=support(node.logps.get("support", ())),
            utility=0.0 if ignored else utility(node.logps.get("utility", ())),
        )


def _places(node: Node) -> list[tuple[Group, int]]:
    """The groups to be weighed in a node, and the tokens that they stand at."""
    if node.segment is None or node.parent is None:
        return [(_OF_A_GATE[0], 0)]
    gate = () if node.segment.written["retrieval"] == CONTINUE else _OF_A_GATE
    groups = (*(_OF_A_PASSAGE if node.passage else ()), *_OF_AN_ANSWER, *gate)
    return [(group, at) for group in groups if (at := node.segment.places[group]) is not None]

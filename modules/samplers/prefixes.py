"""Prefix cache: keys and values of token sequences that may be continued, as a tree that stores shared prefixes once.

The episodes of a question share its prompt, the branches of a search tree their path, and a turn all turns before it.
So a prefix is read by the model once, as long as it is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True, eq=False)
class Segment:
    """Some tokens after those of the parent, with their keys and values `[2 * layers, heads, T, head_dim]`."""

    ids: tuple[int, ...]
    cache: Tensor | None
    parent: Segment | None
    children: list[Segment] = field(default_factory=list)


class PrefixStore:
    """Segments by question, kept while an episode of the question is held and there is room.

    Where room is short, the least recently used goes first, leaves before their parents. As nothing
    outlives the episodes that are held, a unit of work begins with an empty store, as after a kill.

    Args:
        limit: bytes of keys and values at most.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._roots: dict[str, Segment] = {}
        self._holders: dict[str, set[int]] = {}
        self._recent: OrderedDict[int, Segment] = OrderedDict()  # by id; least recently used first

    @property
    def held(self) -> bool:
        """Whether any episode is held."""
        return bool(self._holders)

    def hold(self, question: str, episode: int) -> None:
        """Keep what is read for this question until this episode is released."""
        self._roots.setdefault(question, Segment((), None, None))
        self._holders.setdefault(question, set()).add(episode)

    def release(self, question: str, episode: int) -> None:
        """Hold an episode no longer; a question without any is forgotten."""
        holders = self._holders.get(question, set())
        holders.discard(episode)
        if not holders:
            self._holders.pop(question, None)
            self._forget(self._roots.pop(question, None))

    def clear(self) -> None:
        """Forget all segments; held episodes stay held."""
        for question, root in self._roots.items():
            self._forget(root)
            self._roots[question] = Segment((), None, None)

    def find(self, question: str, ids: Sequence[int]) -> list[Segment]:
        """The longest chain of segments, its root first, that `ids` begin with."""
        ids, chain, length = tuple(ids), [self._roots[question]], 0
        while fitting := [child for child in chain[-1].children if ids[length : length + len(child.ids)] == child.ids]:
            chain.append(max(fitting, key=lambda child: len(child.ids)))
            length += len(chain[-1].ids)
        self._use(chain[-1])
        return chain

    def add(self, question: str, parent: Segment, ids: tuple[int, ...], cache: Tensor) -> Segment:
        """Keep a continuation of a segment; returns the parent where that is empty, or the parent is kept no more."""
        if not ids or not (id(parent) in self._recent or parent is self._roots.get(question)):
            return parent
        for child in parent.children:
            if child.ids == ids:
                self._use(child)
                return child
        segment = Segment(ids, cache, parent)
        parent.children.append(segment)
        self.bytes += cache.nbytes
        self._recent[id(segment)] = segment
        self._use(segment)
        while self.bytes > self.limit:
            self._drop(next(iter(self._recent.values())))
        return segment

    def _use(self, segment: Segment) -> None:
        """Make a segment the most recently used, and what it continues still more so: the oldest is always a leaf."""
        while segment.parent is not None:
            self._recent.move_to_end(id(segment))
            segment = segment.parent

    def _drop(self, leaf: Segment) -> None:
        assert leaf.parent is not None
        assert leaf.cache is not None
        leaf.parent.children.remove(leaf)
        del self._recent[id(leaf)]
        self.bytes -= leaf.cache.nbytes

    def _forget(self, root: Segment | None) -> None:
        waiting = [root] if root else []
        while waiting:
            segment = waiting.pop()
            waiting += segment.children
            segment.children = []  # a cycle would keep the tensors until the garbage collector comes
            if segment.cache is not None:
                del self._recent[id(segment)]
                self.bytes -= segment.cache.nbytes

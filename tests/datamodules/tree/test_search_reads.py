"""What a search with a model reads: every prefix once, where expander and simulator share a sampler that keeps it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from datamodules.tree.node import Tree
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.sampling import AtTemperature
from modules.samplers.decoding import Decoding
from modules.samplers.in_process import InProcessSampler
from tests.growing import BOOK, QUERY, SUB, Book, said, searcher
from tests.tiny import byte_tokenizer, question, tiny_policy

POLICY = tiny_policy(byte_tokenizer())
DEEP: Book = {
    **BOOK,
    (): [QUERY.format("q"), QUERY.format("r"), SUB.format("s")],
    ("r",): [SUB.format("Ada"), QUERY.format("again")],
}


class ByBook(AtTemperature):
    """Has a model score the next line that a book gives for a path, instead of sampling one."""

    def __init__(self, sampler: InProcessSampler, protocol: ProRAG, book: Book) -> None:
        super().__init__(sampler)
        self.protocol, self.book, self.asked = protocol, book, Counter[tuple[str, ...]]()

    def _changed(self, request: Request) -> Request:
        path = tuple(turn.action.text for turn in request.episode.turns)
        lines = self.book.get(path, ["know </step>\n<answer>\nnobody </answer>"])
        self.asked[path] += 1
        return replace(request, forced_ids=self.protocol.codec.control(lines[self.asked[path] % len(lines)]))


class Reads:
    """How often a model read each token of a question's prefixes, by all up to it; and the prefixes asked for."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self.prefixes: set[tuple[str, tuple[int, ...]]] = set()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    made, read = Reads(), Decoding._read

    def reading(self: Decoding, decoder: Any, groups: Any, first: int) -> Any:
        for name, prefix in groups:
            held = sum(len(segment.ids) for segment in self.store.find(name, prefix))
            start = min(held, len(prefix) - 1)
            made.counts.update((name, prefix[: place + 1]) for place in range(start, len(prefix)))
            made.prefixes.add((name, prefix))
        return read(self, decoder, groups, first)

    monkeypatch.setattr(Decoding, "_read", reading)
    return made


def search(protocol: ProRAG, kept_gb: float) -> tuple[list[Tree], InProcessSampler]:
    sampler = InProcessSampler(POLICY, kept_gb=kept_gb)
    one: Any = ByBook(sampler, protocol, DEEP)
    made = searcher(protocol, one, one, simulations=8, children=3)
    return made.grow([question(identity="q1"), question("And when?", identity="q2")]), sampler


def shape(trees: list[Tree]) -> list[tuple[str, int, float]]:
    return [(said(path[-1]), path[-1].visits, path[-1].value) for tree in trees for path in tree.paths()]


def test_a_prefix_is_read_once_and_nothing_is_kept_after_the_search(protocol: ProRAG, reads: Reads) -> None:
    trees, sampler = search(protocol, kept_gb=1.0)
    assert max(len(path) for tree in trees for path in tree.paths()) >= 4, "the trees are deep enough to tell"
    repeated = {prefix for prefix, count in reads.counts.items() if count > 1}
    assert repeated <= reads.prefixes, "only the last token of a prefix is fed again, for the logits after it"
    assert (sampler._store.bytes, sampler._store.held) == (0, False)
    kept = reads.counts.total()
    reads.counts.clear()
    again, _ = search(protocol, kept_gb=0.0)
    assert reads.counts.total() > 2 * kept, "without room everything is read again"
    assert shape(again) == shape(trees)

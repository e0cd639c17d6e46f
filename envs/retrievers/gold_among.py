"""A retriever for teachers: a real one, whose hits have the gold passage among them."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from envs.interfaces import Retriever
from envs.retrievers.lookup import Lookup
from envs.types import Hit


class Knowing(typing.Protocol):
    """Who knows the gold passages of a query, by id or title: a `PlanTeacher`."""

    def documents(self, query: str) -> tuple[str, ...]: ...


class GoldAmong:
    """What `retriever` finds; where it missed a gold passage of the query, that takes the place of the last hit.

    A passage put in has no score. `counts` says how often the gold passage was found, was put in, or is not known or
    not in the corpus; such a query keeps its hits.

    Args:
        retriever: the real one.
        teacher: knows the gold passages; in a config the very teacher that asks the queries, quoted twice.
        corpus: JSONL file of all passages, the retriever's.
    """

    def __init__(self, retriever: Retriever, teacher: Knowing, corpus: Path) -> None:
        self._retriever, self._teacher, self._corpus = retriever, teacher, Lookup(corpus)
        self.counts: Counter[str] = Counter()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first.

        Raises:
            RetrievalError: the real retriever failed.
        """
        found = self._retriever.search(queries, k)
        return [self._with_gold(query, hits, k) for query, hits in zip(queries, found, strict=True)]

    def _with_gold(self, query: str, hits: list[Hit], k: int) -> list[Hit]:
        known = [self._corpus.find(name) for name in self._teacher.documents(query)]
        gold = [document for document in known if document is not None]
        if not gold:
            self.counts["gold_unknown"] += 1
            return hits
        if {document.id for document in gold} & {hit.document.id for hit in hits}:
            self.counts["gold_found"] += 1
            return hits
        self.counts["gold_put_in"] += 1
        return [*hits[: k - 1], Hit(gold[0])]

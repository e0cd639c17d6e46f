"""A retriever for teachers: the hits of a real one, with the gold passage among them."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from envs.interfaces import Retriever
from envs.retrievers.lookup import Lookup
from envs.types import Hit


class KnowsGold(typing.Protocol):
    """Gives the gold passages of a query, by id or title: a `PlanTeacher`."""

    def documents(self, query: str) -> tuple[str, ...]: ...


class GoldAmong:
    """The hits of `retriever`; where the gold passage of the query is missing, it replaces the last hit.

    A passage that was put in has no score. `counts` says how often the gold passage was found, was put in, or is
    unknown or not in the corpus; such a query keeps its hits.

    Args:
        retriever: the real one.
        teacher: knows the gold passages; in a config the same component as the sampler, by `${parts…}`.
        corpus: JSONL file of all passages, the retriever's.
    """

    def __init__(self, retriever: Retriever, teacher: KnowsGold, corpus: Path) -> None:
        self._retriever, self._teacher, self._corpus = retriever, teacher, Lookup(corpus)
        self.counts: Counter[str] = Counter()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first.

        Raises:
            RetrievalError: the other retriever failed.
        """
        results = self._retriever.search(queries, k)
        return [self._with_gold(query, hits, k) for query, hits in zip(queries, results, strict=True)]

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

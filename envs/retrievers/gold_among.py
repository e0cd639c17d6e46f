"""A retriever for teachers: another retriever's hits, with the gold passage among them."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from envs.interfaces import Retriever
from envs.retrievers.lookup import Lookup
from envs.types import Hit


class Knowing(typing.Protocol):
    """Knows the gold passages of a query, by id or title: a `PlanTeacher`."""

    def documents(self, query: str) -> tuple[str, ...]: ...


class GoldAmong:
    """The hits of `retriever`; where none is a gold passage of the query, one replaces the last hit.

    The replacement has no score. `counts` has the queries whose gold passage was among the hits (`gold_found`), was put
    in (`gold_put_in`), or is not known or not in the corpus (`gold_unknown`): these keep their hits.

    Args:
        retriever: the other retriever.
        teacher: knows the gold passages; in a config the same component as the teacher that writes the queries.
        corpus: JSONL file of all passages of the retriever.
    """

    def __init__(self, retriever: Retriever, teacher: Knowing, corpus: Path) -> None:
        self._retriever, self._teacher, self._corpus = retriever, teacher, Lookup(corpus)
        self.counts: Counter[str] = Counter()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first.

        Raises:
            RetrievalError: the other retriever failed.
        """
        answers = self._retriever.search(queries, k)
        return [self._with_gold(query, hits, k) for query, hits in zip(queries, answers, strict=True)]

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

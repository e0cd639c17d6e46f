"""Several retrievers as one: the fusion of their rankings by reciprocal ranks (Cormack et al. 2009)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from common.costs import counted
from common.document_names import id_key
from common.errors import ConfigError
from common.hashes import short_digest
from envs.interfaces import Retriever
from envs.types import Document, Hit


def reciprocal_ranks(rankings: Sequence[Sequence[Hit]], *, constant: float = 60.0) -> list[Hit]:
    """All passages of some rankings, by the sum of 1 / (`constant` + rank) over those that have it, ranks from 1.

    Passages are the same where their ids are. Equal sums are in the order of the first ranking, then of the next.
    """
    scores: dict[str, float] = {}
    documents: dict[str, Document] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            key = id_key(hit.document.id)
            documents.setdefault(key, hit.document)
            scores[key] = scores.get(key, 0.0) + 1 / (constant + rank)
    return [Hit(documents[key], score) for key, score in sorted(scores.items(), key=lambda item: -item[1])]


class Hybrid:
    """The fused rankings of all `parts`, such as BM25 and a dense retriever over one corpus.

    Args:
        parts: the retrievers by name; an index of each must hold the same passages.
        depth: hits of each part that are fused, at least those asked for.
        constant: of `reciprocal_ranks`; the larger, the less the first ranks stand out.

    Raises:
        ConfigError: fewer than two parts, or a number is out of range.
    """

    def __init__(self, parts: dict[str, Retriever], *, depth: int = 50, constant: float = 60.0) -> None:
        if len(parts) < 2 or depth < 1 or constant < 0:
            raise ConfigError("Hybrid needs at least two parts, depth of at least 1, and constant of at least 0")
        self._parts, self._depth, self._constant = parts, depth, constant

    @property
    def identity(self) -> str:
        """A hash of the parts and settings; there is none where a part has none."""
        parts = [getattr(part, "identity") for part in self._parts.values()]  # noqa: B009 (not in the protocol)
        return f"hybrid-{short_digest([parts, self._depth, self._constant])}"

    @property
    def counts(self) -> Counter[str]:
        """What the parts count."""
        return counted(*self._parts.values())

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first.

        Raises:
            RetrievalError: a part failed.
        """
        found = [part.search(queries, max(k, self._depth)) for part in self._parts.values()]
        return [reciprocal_ranks(rankings, constant=self._constant)[:k] for rankings in zip(*found, strict=True)]

"""BM25 over two fields, the title and the body of a passage, with the eager index of `bm25s` (arXiv:2407.03618).

Titles are a separate field because the name of a popular entity occurs in many bodies and weighs little there, but is
rare among titles: "mayor of C" must find the passage on C and not those on other mayors. BM25 is a sum over terms, so
the score matrices of both fields are added when the index is built, and a query costs one pass.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import bm25s
import numpy as np
from bm25s.tokenization import Tokenized, Tokenizer
from scipy.sparse import csc_matrix

from common.errors import ConfigError
from common.progress import progress_bar
from envs.retrievers.corpus import DocumentFile
from envs.retrievers.index_folder import IndexFolder
from envs.types import Hit

_WORD = r"\w+"  # single characters count: "Film 7" is not "Film 8"


class BM25:
    """Lexical retriever: Lucene's BM25, body plus `title_weight` times title.

    A passage that shares no word with the query is never a hit, so there may be fewer than `k`. Passages with equal
    scores are in the order of the corpus. Words are compared in lower case and Unicode NFC, as the eye reads them.
    `stopwords` is a language of `bm25s`, or None. With `cache`, a folder, the index is built once for a corpus and
    settings and then memory-mapped. `identity` hashes corpus and settings.

    Raises:
        DataError: the corpus cannot be read.
        ConfigError: a setting is out of range.
    """

    def __init__(
        self,
        corpus: Path,
        *,
        title_weight: float = 1.0,
        k1: float = 1.5,
        b: float = 0.75,
        stopwords: str | None = "en",
        cache: str | None = None,
    ) -> None:
        if title_weight < 0 or k1 < 0 or not 0 <= b <= 1:
            raise ConfigError(f"BM25 needs title_weight >= 0, k1 >= 0, 0 <= b <= 1; got {title_weight}, {k1}, {b}")
        try:
            self._tokenizer = Tokenizer(splitter=_WORD, stopwords=stopwords)  # type: ignore[arg-type] (None is allowed)
        except ValueError as error:
            raise ConfigError(f"BM25: no stopwords for {stopwords!r}; give a language such as 'en', or null") from error
        self.documents = DocumentFile(corpus, cache=cache)
        self._settings: dict[str, Any] = {"k1": k1, "b": b, "csc_backend": "scipy"}
        self._title_weight = title_weight
        key = [self.documents.identity, title_weight, k1, b, stopwords, _WORD, bm25s.__version__]
        if not self.documents.composed:
            key.append("nfc")
        self.identity = f"bm25-{hashlib.blake2b(json.dumps(key).encode(), digest_size=12).hexdigest()}"
        self._folder = None
        if cache is None:
            self._index = self._build()
        else:
            self._folder = IndexFolder(Path(cache) / self.identity, lambda folder: self._build().save(folder))
            self._index = bm25s.BM25.load(self._folder.path, mmap=True)
        self._tokenizer.word_to_id = self._index.vocab_dict

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first; none for a query without a known word.

        Raises:
            DataError: the corpus or the cached index was changed since it was opened.
        """
        texts = [_folded(query) for query in queries]
        tokens = self._tokenizer.streaming_tokenize(texts, update_vocab="never", allow_empty=False)
        found = [self._hits(ids, k) for ids in tokens]
        if self._folder is not None:
            self._folder.check()
        return found

    def _hits(self, ids: list[int], k: int) -> list[Hit]:
        if not ids:
            return []
        scores = self._index.get_scores_from_ids(ids)
        hits = []
        for _ in range(min(k, len(scores))):
            best = int(scores.argmax())  # the first of equals; a partition is ten times slower with many ties
            if scores[best] == 0:
                break
            hits.append(Hit(self.documents[best], float(scores[best])))
            scores[best] = 0
        return hits

    def _build(self) -> bm25s.BM25:
        titles, bodies = _Field(), _Field()
        with progress_bar(2 * len(self.documents), "tokenizing passages", "field") as bar:
            stream = self._tokenizer.streaming_tokenize(self._texts(), update_vocab=True, allow_empty=False)  # type: ignore[arg-type] (takes a stream)
            for number, ids in enumerate(stream):
                (bodies if number % 2 else titles).append(ids)
                bar.update()
        index = self._field_index(bodies)
        matrix = _matrix(index) + self._title_weight * _matrix(self._field_index(titles))
        index.scores |= {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
        return index

    def _texts(self) -> Iterator[str]:
        for document in self.documents:
            yield _folded(document.title)
            yield _folded(document.text)

    def _field_index(self, field: _Field) -> bm25s.BM25:
        index = bm25s.BM25(**self._settings)
        with np.errstate(invalid="ignore"):  # 0/0 in the length ratio of a corpus whose titles are all empty
            index.index(
                Tokenized(field, self._tokenizer.word_to_id),  # type: ignore[arg-type] (behaves like a list of lists)
                create_empty_token=False,
                show_progress=sys.stderr.isatty(),
            )
        return index


def _folded(text: str) -> str:
    return normalize("NFC", text.lower())


class _Field:
    """Token ids of one field of all passages, four bytes a token."""

    def __init__(self) -> None:
        self._ids, self._ends = array("i"), array("q", [0])

    def append(self, ids: list[int]) -> None:
        self._ids.extend(ids)
        self._ends.append(len(self._ids))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[array[int]]:
        for passage in range(len(self)):
            yield self._ids[self._ends[passage] : self._ends[passage + 1]]


def _matrix(index: bm25s.BM25) -> csc_matrix:
    """Precomputed scores [passages, words]."""
    scores = index.scores
    shape = (scores["num_docs"], len(index.vocab_dict))
    return csc_matrix((scores["data"], scores["indices"], scores["indptr"]), shape=shape)

"""Dense retrieval: FAISS inner product over a corpus, for any encoder and any index-factory string."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import ConfigError, DataError
from common.files import build_once
from common.progress import progress_bar
from common.seeds import stable_hash
from envs.retrievers.corpus import DocumentFile
from envs.retrievers.encoder import Encoder
from envs.types import Document, Hit

_BLOCK = 4096  # passages encoded and added at once
_TRAIN_PER_CLUSTER = 64  # FAISS warns below 39
_TRAIN_AT_LEAST = 16_384  # product quantizers learn 256 centroids too
_FILE = "index.faiss"


class Dense:
    """Dense retriever; a passage is encoded as its title, a line end and its text, after the encoder's prefix.

    `index` is a FAISS factory string: `Flat` (exact), `SQfp16` (exact but for half precision), `IVF4096,Flat`
    (clusters), `HNSW32` (graph), or any other. `nprobe` is the number of clusters that a query visits, by default the
    square root of their number; `ef_search` is the search width in a graph, by default 64. The index is built once for
    a corpus, an encoder and a factory string, stored in `cache` and memory-mapped. A build needs the memory of the
    whole index, a search does not. `identity` is a hash of all settings that change an answer.

    Raises:
        DataError: the corpus cannot be read, or the cached index does not fit it.
        ConfigError: FAISS is missing, or rejects the settings.
    """

    def __init__(
        self,
        corpus: Path,
        encoder: Encoder,
        *,
        index: str = "Flat",
        cache: str = "runs/cache",
        nprobe: int | None = None,
        ef_search: int | None = None,
    ) -> None:
        self._faiss = _faiss()
        self._encoder, self._factory = encoder, index
        self._nprobe, self._ef_search = nprobe, ef_search
        untrained = self._empty()
        self._tune(untrained)  # so that a setting that the index rejects fails before the build
        self.documents = DocumentFile(corpus, cache=cache)
        if self._clusters(untrained) > len(self.documents):
            raise ConfigError(f"index {index} has more clusters than {self.documents.path} has passages")
        name = f"dense-{_digest(self.documents.identity, encoder.passage_identity, index)}"
        self.identity = f"dense-{_digest(name, encoder.identity, nprobe, ef_search)}"
        folder = build_once(Path(cache) / name, self._build)
        self._index = self._load(folder)
        self._tune(self._index)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first; equal scores in the order of the corpus."""
        vectors = self._encoder.encode_queries(queries)
        scores_NK, ids_NK = self._index.search(vectors, min(k, len(self.documents)))
        ranks_NK = np.lexsort((ids_NK, -scores_NK))
        return [
            [Hit(self.documents[ids[i]], float(scores[i])) for i in ranks if ids[i] >= 0]  # -1 where FAISS found fewer
            for scores, ids, ranks in zip(scores_NK, ids_NK, ranks_NK, strict=True)
        ]

    def _empty(self) -> Any:
        try:
            return self._faiss.index_factory(self._encoder.dimension, self._factory, self._faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise ConfigError(f"FAISS makes no index of {self._factory!r}: {_reason(error)}") from error

    def _clusters(self, index: Any) -> int:
        ivf = self._faiss.try_extract_index_ivf(index)
        return 0 if ivf is None else ivf.nlist

    def _tune(self, index: Any) -> None:
        nprobe = self._nprobe or math.isqrt(self._clusters(index)) or None
        ef_search = self._ef_search or (64 if self._factory.startswith("HNSW") else None)
        for name, value in (("nprobe", nprobe), ("efSearch", ef_search)):
            if value is not None:
                try:
                    self._faiss.ParameterSpace().set_index_parameter(index, name, value)
                except RuntimeError as error:
                    raise ConfigError(f"index {self._factory} takes no {name}: leave it out") from error

    def _build(self, folder: Path) -> None:
        index = self._empty()
        if not index.is_trained:
            try:
                index.train(self._encoder.encode_passages([passage_text(d) for d in self._sample(index)]))
            except RuntimeError as error:
                raise ConfigError(f"index {self._factory} cannot be trained: {_reason(error)}") from error
        stream: Iterator[Document] = iter(self.documents)
        with progress_bar(len(self.documents), "encoding passages", "passage") as bar:
            while block := [passage_text(document) for document in islice(stream, _BLOCK)]:
                index.add(self._encoder.encode_passages(block))
                bar.update(len(block))
        self._faiss.write_index(index, str(folder / _FILE))

    def _sample(self, index: Any) -> Iterator[Document]:
        """Passages to train on, chosen by hash."""
        size = min(len(self.documents), max(_TRAIN_PER_CLUSTER * self._clusters(index), _TRAIN_AT_LEAST))
        random = np.random.default_rng(stable_hash(self.documents.identity, self._factory))
        chosen = random.choice(len(self.documents), size, replace=False, shuffle=False)
        return (self.documents[i] for i in np.sort(chosen))

    def _load(self, folder: Path) -> Any:
        try:
            index = self._faiss.read_index(str(folder / _FILE), self._faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise DataError(f"{folder} holds no index that can be read: remove the folder; {_reason(error)}") from error
        if (index.ntotal, index.d) != (len(self.documents), self._encoder.dimension):
            raise DataError(
                f"{folder} holds {index.ntotal} vectors of {index.d} numbers, but {self.documents.path} has "
                f"{len(self.documents)} passages and the encoder gives {self._encoder.dimension}: remove the folder"
            )
        return index


def passage_text(document: Document) -> str:
    """The text of a passage for an encoder, which adds its prefix."""
    return f"{document.title}\n{document.text}"


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "FAISS is not installed: install exactly one of the extras, pip install '.[cpu]' or '.[gpu]'"
        ) from error
    return faiss


def _reason(error: RuntimeError) -> str:
    """The message of a FAISS error without the place in FAISS's source."""
    return str(error).strip().rsplit(": ", 1)[-1]


def _digest(*parts: str | int | None) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()

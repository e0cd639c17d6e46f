"""Dense retrieval: FAISS inner product over a corpus, for any encoder and any index, built here or published."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import ConfigError, DataError, RetrievalError
from common.progress import progress_bar
from common.seeds import stable_hash
from envs.retrievers import vector_index
from envs.retrievers.corpus import DocumentFile
from envs.retrievers.encoder import Encoder
from envs.retrievers.index_folder import IndexFolder
from envs.retrievers.vector_index import IndexDevice
from envs.retrievers.watched_file import WatchedFile
from envs.types import Document, Hit

_BLOCK = 4096  # passages encoded and added at once
_TRAIN_PER_CLUSTER = 64  # FAISS warns below 39
_TRAIN_AT_LEAST = 16_384  # product quantizers learn 256 centroids too
_FILE = "index.faiss"


class Dense:
    """Dense retriever; a passage is encoded as its title, a line end and its text, after the encoder's prefix.

    The index is memory-mapped. Either it is built once for a corpus, an encoder and a factory string and stored in
    `cache`, which needs the memory of the whole index; or it is a published file, read as it is (`index_file`), whose
    vectors must be those of the corpus, in its order, by the same encoder. `identity` is a hash of all that changes an
    answer by more than the rounding of its scores.

    Args:
        corpus: JSONL file of all passages.
        encoder: for queries, and for passages where the index is built here.
        index: FAISS factory string, by default `Flat` (exact); `SQfp16` (exact but for half precision),
            `IVF4096,Flat` (clusters), `HNSW32` (graph), or any other.
        index_file: a FAISS index of inner products, in place of `index`.
        cache: folder of indexes and of what is known of files.
        nprobe: clusters that a query visits, by default the square root of their number.
        ef_search: search width in a graph, by default 64.
        device: `auto` puts the index on all GPUs that FAISS sees, a shard each, `cuda` insists on them, `cpu` has none.
        half: on GPUs, keep the vectors in half precision.

    Raises:
        DataError: the corpus or the index cannot be read, or they do not fit each other.
        ConfigError: FAISS is missing, or rejects the settings.
    """

    def __init__(
        self,
        corpus: Path,
        encoder: Encoder,
        *,
        index: str | None = None,
        index_file: Path | None = None,
        cache: str = "runs/cache",
        nprobe: int | None = None,
        ef_search: int | None = None,
        device: IndexDevice = "cpu",
        half: bool = False,
    ) -> None:
        if index is not None and index_file is not None:
            raise ConfigError(f"give index ({index}, to build one) or index_file (to load one), not both")
        self._encoder, self._factory, self._nprobe, self._ef_search = encoder, index or "Flat", nprobe, ef_search
        if index_file is None:
            stored, name = self._built(Path(corpus), Path(cache))
        else:
            stored, name = self._published(Path(corpus), Path(index_file), Path(cache))
        self._index = vector_index.on_device(stored, device, half=half)
        rounded = half and self._index is not stored
        self.identity = f"dense-{_digest(name, encoder.identity, nprobe, ef_search, *(['half'] if rounded else []))}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first; equal scores in the order of the corpus.

        Raises:
            DataError: the corpus or the index was changed since it was opened, or its hits cannot be true.
            RetrievalError: the encoder gives numbers that are not finite, for instance where float16 overflows.
        """
        vectors = _finite(self._encoder.encode_queries(queries), queries)
        scores_NK, ids_NK = self._index.search(vectors, min(k, len(self.documents)))
        self._check_index()
        if (largest := ids_NK.max(initial=-1)) >= len(self.documents):
            raise DataError(
                f"dense index of {self.documents.path}: passage {largest} of {len(self.documents)}: ids must be places "
                "in the corpus, from 0"
            )
        if not np.isfinite(scores_NK[ids_NK >= 0]).all():
            raise DataError(f"dense index of {self.documents.path}: a score that is not finite: build it again")
        ranks_NK = np.lexsort((ids_NK, -scores_NK))
        return [
            [Hit(self.documents[ids[i]], float(scores[i])) for i in ranks if ids[i] >= 0]  # -1 where FAISS found fewer
            for scores, ids, ranks in zip(scores_NK, ids_NK, ranks_NK, strict=True)
        ]

    def _built(self, corpus: Path, cache: Path) -> tuple[Any, str]:
        """The index made here, and its name: a hash of what it is made of."""
        untrained = vector_index.empty_index(self._encoder.dimension, self._factory)
        self._tune(untrained, self._factory)  # so that a setting that the index rejects fails before the build
        self.documents = DocumentFile(corpus, cache=cache)
        if vector_index.clusters(untrained) > len(self.documents):
            raise ConfigError(f"index {self._factory} has more clusters than {self.documents.path} has passages")
        name = f"dense-{_digest(self.documents.identity, self._encoder.passage_identity, self._factory)}"
        folder = IndexFolder(cache / name, self._build, costly=True)
        self._check_index = folder.check
        advice = "remove the folder"
        index = vector_index.open_index(folder.path / _FILE, self.documents, self._encoder.dimension, advice)
        self._tune(index, self._factory)
        return index, name

    def _published(self, corpus: Path, file: Path, cache: Path) -> tuple[Any, str]:
        """The index of a file, and its name: a hash of its bytes and the corpus."""
        watched = WatchedFile(file, "index")
        self.documents = DocumentFile(corpus, cache=cache)
        advice = "give the file that belongs to this corpus and encoder"
        index = vector_index.open_index(file, self.documents, self._encoder.dimension, advice)
        identity = vector_index.file_identity(watched, index, cache)
        self._check_index = lambda: watched.check(identity, watched.digest)
        self._tune(index, file.name)
        vector_index.check_rows(index, file, self.documents, self._encode)
        return index, _digest(self.documents.identity, identity)

    def _tune(self, index: Any, name: str) -> None:
        vector_index.tune(index, name, nprobe=self._nprobe, ef_search=self._ef_search)

    def _build(self, folder: Path) -> None:
        index = vector_index.empty_index(self._encoder.dimension, self._factory)
        if not index.is_trained:
            try:
                index.train(self._encode(list(self._sample(index))))
            except RuntimeError as error:
                reason = vector_index.reason_of(error)
                raise ConfigError(f"index {self._factory} cannot be trained: {reason}") from error
        stream: Iterator[Document] = iter(self.documents)
        with progress_bar(len(self.documents), "encoding passages", "passage") as bar:
            while block := list(islice(stream, _BLOCK)):
                index.add(self._encode(block))
                bar.update(len(block))
        vector_index.import_faiss().write_index(index, str(folder / _FILE))

    def _encode(self, documents: Sequence[Document]) -> np.ndarray:
        """Vectors [N, D] of passages."""
        texts = [passage_text(document) for document in documents]
        return _finite(self._encoder.encode_passages(texts), texts)

    def _sample(self, index: Any) -> Iterator[Document]:
        """Passages to train on, chosen by hash."""
        size = min(len(self.documents), max(_TRAIN_PER_CLUSTER * vector_index.clusters(index), _TRAIN_AT_LEAST))
        random = np.random.default_rng(stable_hash(self.documents.identity, self._factory))
        chosen = random.choice(len(self.documents), size, replace=False, shuffle=False)
        return (self.documents[i] for i in np.sort(chosen))


def passage_text(document: Document) -> str:
    """The text of a passage for an encoder, which adds its prefix."""
    return f"{document.title}\n{document.text}"


def _finite(vectors_ND: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    wrong = ~np.isfinite(vectors_ND).all(1)
    if wrong.any():
        text = " ".join(texts[int(wrong.argmax())].split())
        raise RetrievalError(f"the encoder's vector of {text[:60]!r} is not finite: use dtype float32 or another model")
    return vectors_ND


def _digest(*parts: str | int | None) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()

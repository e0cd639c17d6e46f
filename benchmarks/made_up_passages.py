"""Made-up passages, vectors and queries of any number, by seed, and the indexes and the retriever of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from common.seeds import stable_hash
from envs.retrievers.dense import Dense
from envs.types import Document

DIMENSION = 384  # that of all-MiniLM-L6-v2
_BLOCK = 10_000


def write_corpus(path: Path, passages: int) -> list[str]:
    """Write passages of 50 content words and a title of two; returns 1,024 queries, each 8 words of one passage."""
    random = np.random.default_rng(stable_hash("benchmark", "passages"))
    frequency = 1 / np.arange(100, 200_000)  # the Zipf-Mandelbrot law, without the hundred words most used
    frequency /= frequency.sum()
    chosen = set(random.integers(passages, size=1024).tolist())
    queries: list[str] = []
    with open(path, "w") as file:
        for start in range(0, passages, _BLOCK):
            drawn = random.choice(len(frequency), (min(_BLOCK, passages - start), 52), p=frequency)
            for number, row in enumerate(drawn.tolist(), start):
                words = [f"w{i}" for i in row]
                # The row's number stands in front of the title: `GivenVectors` knows its passage by it.
                fields = {"id": str(number), "title": " ".join([str(number), *words[:2]]), "text": " ".join(words[2:])}
                file.write(json.dumps(fields) + "\n")
                if number in chosen:
                    queries.append(" ".join(words[:50:7]))
    return queries


def words_of(document: Document) -> str:
    """The query that a passage of `write_corpus` has, or would have."""
    return " ".join([*document.title.split()[1:], *document.text.split()][:50:7])


def clustered_vectors(count: int, dimension: int = DIMENSION) -> np.ndarray:
    """Vectors [N, D] of length 1 around a thousand centres, as those of texts are around topics."""
    random = np.random.default_rng(stable_hash("benchmark", "vectors"))
    centres = random.standard_normal((1000, dimension), dtype=np.float32)
    vectors = np.empty((count, dimension), dtype=np.float32)
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        noise = random.standard_normal((size, dimension), dtype=np.float32)
        block = centres[random.integers(len(centres), size=size)] + noise
        vectors[start : start + size] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return vectors


class GivenVectors:
    """An encoder that looks up: a passage's vector by the number in its title, a query's by the number that it is.

    A query's vector is that of a passage with noise, so that it has a neighbour to be found.
    """

    identity = passage_identity = "given"

    def __init__(self, vectors_ND: np.ndarray) -> None:
        self.vectors_ND, self.dimension = vectors_ND, vectors_ND.shape[1]
        random = np.random.default_rng(stable_hash("benchmark", "queries"))
        picks = random.integers(len(vectors_ND), size=1024)
        noise = random.standard_normal((1024, self.dimension), dtype=np.float32) / self.dimension**0.5
        self._queries_ND = vectors_ND[picks] + 0.5 * noise

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [N, D] of passages."""
        return self.vectors_ND[[int(text.split(maxsplit=1)[0]) for text in texts]]

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [N, D] of queries "0" to "1023"."""
        return self._queries_ND[[int(text) for text in texts]]


def publish(path: Path, factory: str, vectors_ND: np.ndarray) -> None:
    """Train, fill and write a FAISS index."""
    index = faiss.index_factory(vectors_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    clusters = faiss.try_extract_index_ivf(index)
    sample = vectors_ND if clusters is None else vectors_ND[: 64 * clusters.nlist]  # the order is random already
    index.train(sample)
    index.add(vectors_ND)
    faiss.write_index(index, str(path))


def served(folder: str) -> Dense:
    """The retriever that the server serves: a flat index of the folder, asked by numbers of queries."""
    here = Path(folder)
    stored: Any = faiss.read_index(str(here / "Flat.index"))
    encoder: Any = GivenVectors(stored.reconstruct_n(0, stored.ntotal))
    return Dense(here / "corpus.jsonl", encoder, index_file=here / "Flat.index", cache=str(here / "cache"))

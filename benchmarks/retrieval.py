"""Queries a second of each index, against bm25s, and of the server under several clients, against no batching.

    python -m benchmarks.retrieval [--passages 10000 100000 1000000] [--indexes bm25 bm25s Flat SQfp16 IVF HNSW32]

Passages and vectors are made up (50 words; 384 numbers around a thousand centres). Indexes are asked in this process,
one query at a time and 64 at a time, 3 passages each. `bm25` is the suite's, with a field for titles; `bm25s` is the
library as it is, with one field and its Numba backend; `milvus-bm25` and `milvus-dense` are Milvus Lite, `opensearch`
the server at `--opensearch`. A dense index is asked with vectors at hand, without an encoder. `recall` is, of a dense
index, the share of the exact index's passages, of one of words the share of queries whose own passage is found.
`memory_mb` is what the process grew by from the build to the last query: name one index for an exact figure.

Each client asks the server one query at a time, over `--server-passages`, dense by a flat index; `batched` is the
server as it is, `alone` with --max-batch 1, both without kept answers, alternating. Figures are medians of the repeats.
CPU time is that of the process which searches: it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bm25s
import faiss

from benchmarks.made_up_passages import GivenVectors, clustered_vectors, publish, words_of, write_corpus
from benchmarks.measures import Stopwatch, resident_mb
from benchmarks.report import medians, read_options, report
from benchmarks.server_load import load, server
from envs.retrievers import milvus, opensearch
from envs.retrievers.bm25 import BM25
from envs.retrievers.dense import Dense
from envs.types import Hit

TOP_K = 3
Row = dict[str, Any]


class OneField:
    """The peer: bm25s over title and text as one field, written to a folder as an index that is kept.

    Its backend is Numba's where that is installed.
    """

    def __init__(self, corpus: Path, *, cache: str) -> None:
        with corpus.open() as lines:
            texts = [f"{row['title']} {row['text']}" for row in map(json.loads, lines)]
        self._index = bm25s.BM25(backend="auto")
        self._index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
        self._index.save(cache)

    def search(self, queries: Sequence[str], top_k: int) -> object:
        """Numbers of passages with their scores."""
        return self._index.retrieve(bm25s.tokenize(list(queries), show_progress=False), k=top_k, show_progress=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    indexes: dict[str, Any] = {"passages": [10_000, 100_000, 1_000_000], "queries": 512}
    indexes["indexes"] = ["bm25", "bm25s", "milvus-bm25", "Flat", "SQfp16", "IVF", "HNSW32", "milvus-dense"]
    servers: dict[str, Any] = {"clients": [1, 8, 32], "served": ("bm25", "dense")}
    options = read_options(
        __doc__, arguments, **indexes, **servers, server_passages=100_000, requests=512, opensearch=""
    )
    faiss.omp_set_num_threads(options.threads)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for passages in options.passages:
            rows += _index_rows(folder / str(passages), passages, options)
        rows += _server_rows(folder / "server", options) if options.clients else []
    report(rows, options)


def _index_rows(folder: Path, passages: int, options: argparse.Namespace) -> Iterator[Row]:
    """One row an index, over the same passages."""
    folder.mkdir(parents=True)
    corpus = folder / "corpus.jsonl"
    words = write_corpus(corpus, passages)[: options.queries]
    encoder: Any = GivenVectors(clustered_vectors(passages))
    numbers = [str(i) for i in range(min(options.queries, 1024))]
    vectors_ND = encoder.encode_queries(numbers)
    exact = faiss.knn(vectors_ND, encoder.vectors_ND, TOP_K, faiss.METRIC_INNER_PRODUCT)[1].tolist()
    for name in options.indexes:
        stored = folder / name
        memory, start = resident_mb(), time.perf_counter()
        retriever: Any = _opened(name, corpus, stored, encoder, options)
        row: Row = {"what": name, "passages": passages, "build_s": time.perf_counter() - start}
        files = [path for top in (stored, stored.with_name(f"{name}.db")) for path in (top, *top.rglob("*"))]
        row["mb"] = sum(path.stat().st_size for path in files if path.is_file()) / 2**20
        queries = words if name in _BY_WORDS else numbers
        row |= _speeds(lambda part, retriever=retriever: retriever.search(part, TOP_K), queries, options)
        row["memory_mb"] = resident_mb() - memory
        if name != "bm25s":  # which gives numbers of passages
            row["recall"] = _recall(retriever.search(queries, TOP_K), queries, exact if queries is numbers else None)
        if stored.is_file():
            stored.unlink()
        yield row


_BY_WORDS = ("bm25", "bm25s", "milvus-bm25", "opensearch")


def _opened(name: str, corpus: Path, stored: Path, encoder: Any, options: argparse.Namespace) -> Any:
    """An index that is built beside the corpus, or at its server."""
    if name in ("bm25", "bm25s"):
        return {"bm25": BM25, "bm25s": OneField}[name](corpus, cache=str(stored))
    if name == "opensearch":
        opensearch.fill(corpus, options.opensearch, "benchmark")
        return opensearch.OpenSearch(options.opensearch, "benchmark")
    if name.startswith("milvus"):
        uri, kind = f"{stored}.db", name.removeprefix("milvus-")
        by_vectors = encoder if kind == "dense" else None
        milvus.fill(corpus, uri, "benchmark", by_vectors)
        return milvus.Milvus(uri, "benchmark", search=kind, encoder=by_vectors)  # type: ignore[arg-type] (of its kinds)
    factory = f"IVF{4 * math.isqrt(len(encoder.vectors_ND))},Flat" if name == "IVF" else name
    publish(stored, factory, encoder.vectors_ND)
    return Dense(corpus, encoder, index_file=stored, cache=str(corpus.with_name("cache")))


def _recall(found: Sequence[Sequence[Hit]], queries: Sequence[str], exact: Sequence[Sequence[int]] | None) -> float:
    """The share of the exact index's passages or, without it, of queries whose own passage was found."""
    if exact is None:
        own = [any(words_of(hit.document) == query for hit in hits) for hits, query in zip(found, queries, strict=True)]
        return sum(own) / len(own)
    ids = [{int(hit.document.id) for hit in hits} for hits in found]
    return sum(len(hits & set(best)) for hits, best in zip(ids, exact, strict=True)) / (TOP_K * len(ids))


def _speeds(ask: Callable[[list[str]], object], queries: Sequence[str], options: argparse.Namespace) -> Row:
    """Queries a second and CPU milliseconds a query, one at a time and 64 at a time."""
    speeds: Row = {}
    ask(list(queries[:64]))  # pages of a mapped file are read before
    for size, asked in ((1, list(queries[:64])), (64, list(queries))):
        runs = []
        for _ in range(options.repeats):
            watch = Stopwatch()
            for start in range(0, len(asked), size):
                ask(asked[start : start + size])
            runs.append(watch.read())
        taken = medians(runs)
        speeds[f"per_s_{size}"] = len(asked) / taken["seconds"]
        speeds[f"cpu_ms_{size}"] = 1000 * taken["cpu_seconds"] / len(asked)
    return speeds


def _server_rows(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """One row a retriever and number of clients: the server as it is against one that never batches."""
    folder.mkdir()
    words = write_corpus(folder / "corpus.jsonl", options.server_passages)
    queries = {"bm25": words, "dense": [str(number) for number in range(1024)]}
    publish(folder / "Flat.index", "Flat", clustered_vectors(options.server_passages))
    spec = {"target": "benchmarks.made_up_passages:served", "folder": str(folder)}
    commands = {
        "bm25": ("bm25", "--corpus", str(folder / "corpus.jsonl"), "--cache", str(folder / "cache")),
        "dense": ("component", "--json", json.dumps(spec)),
    }
    for name in options.served:
        command = (*commands[name], "--cached-answers", "0")
        with server(*command) as batched, server(*command, "--max-batch", "1") as alone:
            for clients in options.clients:
                rounds = [
                    [load(*one, queries[name], clients=clients, requests=options.requests) for one in (batched, alone)]
                    for _ in range(options.repeats)
                ]
                row: Row = {"what": f"server, {name}", "passages": options.server_passages, "clients": clients}
                for number, way in enumerate(("batched", "alone")):
                    row[f"{way}_per_s"] = statistics.median(round[number][0] for round in rounds)
                    row[f"{way}_cpu_ms"] = statistics.median(round[number][1] for round in rounds)
                yield row | {"ratio": statistics.median(both[0] / one[0] for both, one in rounds)}


if __name__ == "__main__":
    main()

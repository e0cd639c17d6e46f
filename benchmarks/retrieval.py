"""How many queries a second each index answers, and the server under 1, 8 and 32 clients.

    python -m benchmarks.retrieval [--passages 10000 100000 1000000] [--indexes bm25 bm25s Flat SQfp16 IVF HNSW32]

Passages and vectors are made up (50 words; 384 numbers around a thousand centres). Indexes are asked in this process,
one query at a time and 64 at a time, 3 passages each; `recall` is the share of the exact index's passages. `bm25` is
the suite's, with a field for titles; `bm25s` is the library as it is, with one field and its Numba backend. A dense
index is asked with vectors at hand: the encoder is measured by itself, in the first row. The server is asked for one
query at a time by each client; `batched` is the server as it is, `alone` with --max-batch 1, both without kept answers,
alternating; the figures are medians of the repeats. CPU time is that of the process which searches: it depends less on
what else the machine does.
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
import torch

from benchmarks.made_up_passages import GivenVectors, clustered_vectors, publish, random_encoder, write_corpus
from benchmarks.report import report
from benchmarks.server_load import load, server
from envs.interfaces import Retriever
from envs.retrievers.bm25 import BM25
from envs.retrievers.dense import Dense
from envs.retrievers.encoder import Encoder

TOP_K = 3
PACKAGES = ("torch", "transformers", "faiss-cpu", "faiss-gpu", "bm25s", "numba", "numpy", "fastapi", "uvicorn")


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="none: no index")
    parser.add_argument("--indexes", nargs="*", default=["bm25", "bm25s", "Flat", "SQfp16", "IVF", "HNSW32"])
    parser.add_argument("--queries", type=int, default=512, help="asked of an index, at most 1,024")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32], help="none: no server")
    parser.add_argument("--served", nargs="*", default=["bm25", "dense"], help="retrievers that are served")
    parser.add_argument("--server-passages", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=512, help="of all clients of the server together")
    parser.add_argument("--encoder", help="folder of a sentence encoder with 384 numbers; else random weights")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        if options.passages:
            rows.append(_encoder_row(Path(folder), options))
        for passages in options.passages:
            rows += _index_rows(Path(folder) / str(passages), passages, options)
        rows += _server_rows(Path(folder) / "server", options) if options.clients else []
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    report(rows, packages=PACKAGES, json_file=options.json, settings=settings)


def _encoder_row(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    encoder = Encoder(options.encoder or random_encoder(folder / "encoder"))
    texts = [" ".join(f"w{i + j}" for j in range(8)) for i in range(min(options.queries, 128))]
    return {"what": "encoder, queries of 8 words"} | _speeds(lambda part: encoder.encode_queries(part), texts, options)


def _index_rows(folder: Path, passages: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row an index, over the same passages."""
    folder.mkdir(parents=True)
    corpus = folder / "corpus.jsonl"
    words = write_corpus(corpus, passages)[: options.queries]
    by_words: dict[str, Any] = {"bm25": BM25, "bm25s": OneField}
    for name in [name for name in options.indexes if name in by_words]:
        cache = folder / name
        retriever, seconds = _timed(lambda name=name, cache=cache: by_words[name](corpus, cache=str(cache)))
        yield _row(name, passages, seconds, cache, retriever, words, options)
    dense = [name for name in options.indexes if name not in by_words]
    if not dense:
        return
    encoder: Any = GivenVectors(clustered_vectors(passages))
    numbers = [str(i) for i in range(min(options.queries, 1024))]
    exact = [{int(i) for i in row} for row in _nearest(encoder, numbers)]
    for name in dense:
        factory = f"IVF{4 * math.isqrt(passages)},Flat" if name == "IVF" else name
        file = folder / f"{name}.index"
        _, seconds = _timed(lambda file=file, factory=factory: publish(file, factory, encoder.vectors_ND))
        retriever = Dense(corpus, encoder, index_file=file, cache=str(folder / "cache"))
        row = _row(factory, passages, seconds, file, retriever, numbers, options)
        found = [{int(hit.document.id) for hit in hits} for hits in retriever.search(numbers, TOP_K)]
        shared = sum(len(a & b) for a, b in zip(exact, found, strict=True))
        yield row | {"recall": shared / (TOP_K * len(numbers))}
        file.unlink()


def _nearest(encoder: GivenVectors, queries: Sequence[str]) -> Any:
    """Rows [N, K] of the nearest passages, by FAISS's own exact search."""
    return faiss.knn(encoder.encode_queries(queries), encoder.vectors_ND, TOP_K, faiss.METRIC_INNER_PRODUCT)[1]


def _row(
    name: str,
    passages: int,
    build_s: float,
    stored: Path,
    retriever: Retriever | OneField,
    queries: Sequence[str],
    options: argparse.Namespace,
) -> dict[str, Any]:
    files = [stored] if stored.is_file() else [path for path in stored.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    facts = {"what": name, "passages": passages, "build_s": build_s, "mb": size}
    return facts | _speeds(lambda part: retriever.search(part, TOP_K), queries, options)


def _speeds(ask: Callable[[list[str]], object], queries: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Queries a second and CPU milliseconds a query, one at a time and 64 at a time; medians of the repeats."""
    speeds: dict[str, Any] = {}
    ask(list(queries[:64]))  # pages of a mapped file are read before
    for size in (1, 64):
        parts = [list(queries[i : i + size]) for i in range(0, len(queries), size)]
        parts = parts[: max(1, 64 // size)] if size == 1 else parts
        asked, runs = sum(map(len, parts)), []
        for _ in range(options.repeats):
            cpu = time.process_time()
            _, seconds = _timed(lambda parts=parts: [ask(part) for part in parts])
            runs.append((asked / seconds, 1000 * (time.process_time() - cpu) / asked))
        speeds[f"per_s_{size}"] = statistics.median(run[0] for run in runs)
        speeds[f"cpu_ms_{size}"] = statistics.median(run[1] for run in runs)
    return speeds


def _server_rows(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row a retriever and number of clients: the server as it is beside one that never batches."""
    folder.mkdir()
    queries = write_corpus(folder / "corpus.jsonl", options.server_passages)
    publish(folder / "Flat.index", "Flat", clustered_vectors(options.server_passages))
    spec = {"target": "benchmarks.made_up_passages:served", "folder": str(folder)}
    if options.encoder:
        spec["encoder"] = options.encoder
    commands = {
        "bm25": ("bm25", "--corpus", str(folder / "corpus.jsonl"), "--cache", str(folder / "cache")),
        "dense": ("component", "--json", json.dumps(spec)),
    }
    for name in options.served:
        command = (*commands[name], "--cached-answers", "0")
        with server(*command) as batched, server(*command, "--max-batch", "1") as alone:
            for clients in options.clients:
                rounds = [
                    [load(one, queries, clients=clients, requests=options.requests) for one in (batched, alone)]
                    for _ in range(options.repeats)
                ]
                yield {
                    "what": f"server, {name}",
                    "passages": options.server_passages,
                    "clients": clients,
                    "batched_per_s": statistics.median(a.requests_per_s for a, _ in rounds),
                    "alone_per_s": statistics.median(b.requests_per_s for _, b in rounds),
                    "ratio": statistics.median(a.requests_per_s / b.requests_per_s for a, b in rounds),
                    "batched_cpu_ms": statistics.median(a.cpu_ms for a, _ in rounds),
                    "alone_cpu_ms": statistics.median(b.cpu_ms for _, b in rounds),
                    "cpu_ratio": statistics.median(b.cpu_ms / max(a.cpu_ms, 1e-9) for a, b in rounds),
                }


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()

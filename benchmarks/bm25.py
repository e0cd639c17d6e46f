"""How fast BM25 indexes short passages and answers, beside plain single-field bm25s: `python -m benchmarks.bm25`.

The passages are made up: 50 content words each and a title of two; a query is 8 words of a passage.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import bm25s
import numpy as np

from common.seeds import stable_hash
from envs.retrievers.bm25 import BM25

T = TypeVar("T")


def main() -> None:
    """Print one JSON object: seconds, ratios to the peer (below 1 is faster) and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1_000)
    args = parser.parse_args()
    passages, queries = _made_up(args.passages, args.queries)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        rows = ({"id": str(i), "title": title, "text": text} for i, (title, text) in enumerate(passages))
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
        del passages
        retriever, index_s = _timed(lambda: BM25(corpus))
        query_s = statistics.median(_timed(lambda: retriever.search(queries, 5))[1] for _ in range(3))
        peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        peer, peer_index_s = _timed(lambda: _single_field(corpus))
        peer_query_s = statistics.median(_timed(lambda: _ask(peer, queries))[1] for _ in range(3))
    report = {
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("bm25s", "numpy", "scipy")},
        "passages": args.passages,
        "index_s": round(index_s, 2),
        "queries": args.queries,
        "query_s": round(query_s, 3),
        "peak_rss_mb": round(peak_rss_mb),
        "peer": {"index_s": round(peer_index_s, 2), "query_s": round(peer_query_s, 3)},
        "ratio": {"index": round(index_s / peer_index_s, 2), "query": round(query_s / peer_query_s, 2)},
    }
    print(json.dumps(report, indent=2))


def _made_up(passages: int, queries: int) -> tuple[list[tuple[str, str]], list[str]]:
    random = np.random.default_rng(stable_hash("benchmark", "bm25"))
    frequency = 1 / np.arange(100, 200_000)  # the Zipf-Mandelbrot law, without the hundred words most used
    words = np.array([f"w{i}" for i in range(len(frequency))])
    drawn = random.choice(words, (passages, 52), p=frequency / frequency.sum())
    rows = [(" ".join(row[:2]), " ".join(row[2:])) for row in drawn]
    picks = random.integers(passages, size=queries)
    return rows, [" ".join(random.choice(drawn[i], 8, replace=False)) for i in picks]


def _single_field(corpus: Path) -> bm25s.BM25:
    with corpus.open() as lines:
        texts = [f"{row['title']} {row['text']}" for row in map(json.loads, lines)]
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    return index


def _ask(index: bm25s.BM25, queries: list[str]) -> None:
    index.retrieve(bm25s.tokenize(queries, show_progress=False), k=5, show_progress=False)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()

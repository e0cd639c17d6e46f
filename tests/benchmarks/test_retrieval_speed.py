"""The benchmark of retrieval, at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import retrieval

INDEXES = ("bm25", "bm25s", "milvus-bm25", "Flat", "HNSW32", "milvus-dense")


@pytest.mark.threads
def test_each_index_and_the_server_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    tiny = ["--passages", "200", "--indexes", *INDEXES, "--queries", "64", "--clients", "2",
            "--server-passages", "100", "--requests", "8"]  # fmt: skip
    retrieval.main([*tiny, "--repeats", "1", "--threads", "1", "--json", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["what"] for row in rows] == [*INDEXES, "server, bm25", "server, dense"]
    assert all(row["passages"] == 200 and row["per_s_1"] > 0 and row["per_s_64"] > 0 for row in rows[:6])
    assert [row["recall"] > 0.9 for row in rows[:6] if row["what"] != "bm25s"] == [True] * 5
    assert all(row["mb"] > 0 for row in rows[:6])
    assert all(row["ratio"] > 0 and row["alone_per_s"] > 0 for row in rows[6:])

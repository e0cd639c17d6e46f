"""The benchmark of retrieval, at a tiny size, its server left out (tests/benchmarks/test_server_load.py)."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import retrieval


def test_each_index_is_measured_after_the_encoder(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    tiny = ["--passages", "200", "--indexes", "bm25", "Flat", "HNSW32", "--queries", "64", "--clients"]
    retrieval.main([*tiny, "--repeats", "1", "--threads", "1", "--json", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["what"] for row in rows][1:] == ["bm25", "Flat", "HNSW32"]
    assert all(row["passages"] == 200 and row["per_s_1"] > 0 and row["per_s_64"] > 0 for row in rows[1:])
    assert rows[3]["recall"] > 0.9

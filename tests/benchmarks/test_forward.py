from __future__ import annotations

import json
from pathlib import Path

from benchmarks.forward import main


def test_both_decoders_are_measured_on_steps_and_reads(tmp_path: Path) -> None:
    out = tmp_path / "forward.json"
    main(["--models", "tiny", "--dtypes", "float32", "--batches", "3", "--context", "24", "--new", "6",
          "--repeats", "1", "--threads", "1", "--json", str(out)])  # fmt: skip
    report = json.loads(out.read_text())
    assert [(row["batch"], row["pass"]) for row in report["rows"]] == [(3, "step"), (3, "read")]
    for row in report["rows"]:
        assert row["seconds_ratio"] > 0
        assert abs(row["cpu_seconds_ratio"] - row["library_cpu_ms"] / row["fused_cpu_ms"]) < 0.01
    assert report["versions"]["transformers"]

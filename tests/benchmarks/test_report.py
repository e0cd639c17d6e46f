"""Options and report of a benchmark, and medians."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.report import medians, read_options, report, table


def test_options_are_named_and_typed_by_their_defaults(tmp_path: Path) -> None:
    given = ["--batch-size", "3", "--sizes", "4", "5", "--mixed", "--threads", "1", "--json", str(tmp_path / "a" / "b")]
    options = read_options(None, given, batch_size=8, sizes=[1], mixed=False, rate=1.5)
    assert (options.batch_size, options.sizes, options.mixed, options.rate) == (3, [4, 5], True, 1.5)
    assert (options.repeats, options.threads) == (3, 1)

    assert read_options(None, ["--ways", "b"], ways=("a", "b")).ways == ["b"]
    with pytest.raises(SystemExit):
        read_options(None, ["--ways", "c"], ways=("a", "b"))

    report([{"what": "x", "per_s": 2.0}], options, whole=7)
    written = json.loads(options.json.read_text())
    assert written["rows"] == [{"what": "x", "per_s": 2.0}]
    assert (written["whole"], written["settings"]["sizes"]) == (7, "[4, 5]")
    assert {"python", "torch"} <= written["versions"].keys()


def test_the_table_has_a_column_for_every_key() -> None:
    rows = [{"what": "Flat", "passages": 10_000, "per_s": 12.3456}, {"what": "server", "ratio": 1234.5}]
    assert table(rows).splitlines() == [
        "| what | passages | per_s | ratio |",
        "| --- | --- | --- | --- |",
        "| Flat | 10,000 | 12.35 |  |",
        "| server |  |  | 1,234 |",
    ]


def test_medians_are_of_each_figure() -> None:
    assert medians([{"x": 1, "y": 9}, {"x": 3, "y": 7}, {"x": 2, "y": 8}]) == {"x": 2, "y": 8}

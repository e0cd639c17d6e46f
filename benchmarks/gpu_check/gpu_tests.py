"""Tests marked `gpu`: how many of each file pass, where pytest is installed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu_check.parts import Row, Size
from benchmarks.report import ROOT


class Outcomes:
    """A pytest plugin that counts outcomes by file and keeps each file's first reason."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.reasons: dict[str, str] = {}

    def pytest_itemcollected(self, item: Any) -> None:
        if item.get_closest_marker("gpu"):
            self._count(item.nodeid, "found")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._count(report.nodeid, "not read", report.longreprtext)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._count(report.nodeid, report.outcome, report.longreprtext)

    def _count(self, test: str, outcome: str, text: str = "") -> None:
        file = test.partition("::")[0]
        self.counts.setdefault(file, Counter())[outcome] += 1
        if text:
            errors = [line for line in text.splitlines() if line.startswith("E ")] or [text.strip()]
            self.reasons.setdefault(file, errors[-1].removeprefix("E").strip()[:200])


def gpu_tests(size: Size) -> Iterator[Row]:
    """A row for each file; at the tiny size tests are found and not run."""
    if find_spec("pytest") is None:
        yield {"file": "", "reason": "pytest is not installed"}
        return
    import pytest

    files = [str(path) for path in sorted(ROOT.glob("tests/**/test_*.py")) if _has_gpu_tests(path.read_text())]
    outcomes = Outcomes()
    # Without conftest.py, which imports all of the suite; a file whose imports are missing does not end the others.
    options = ["-q", "-m", "gpu", "--noconftest", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    pytest.main([*options, *size.of([], ["--collect-only"]), *files], plugins=[outcomes])
    columns = ("found", "passed", "failed", "skipped", "not read")
    for file, counts in outcomes.counts.items():
        yield {"file": file, **{name: counts[name] for name in columns}, "reason": outcomes.reasons.get(file, "")}
    if any(counts["failed"] for counts in outcomes.counts.values()):
        raise AssertionError("a test failed")


def _has_gpu_tests(text: str) -> bool:
    return re.search(r"\bmark\.gpu\b", text) is not None

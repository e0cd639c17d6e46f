"""Report of a benchmark: a table for people, then one JSON object with machine and versions."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common.files import write_json

ROOT = Path(__file__).parents[1]


def report(rows: Sequence[dict[str, Any]], *, packages: Sequence[str], json_file: Path | None, **facts: Any) -> None:
    """Print the rows as a table, and rows, facts, machine and versions as JSON, to `json_file` too where it is given.

    Args:
        rows: measurements, one a line; their keys are the columns.
        packages: whose versions matter.
        json_file: where the JSON is written, beside standard output.
        facts: settings and figures of the whole run.
    """
    print(table(rows), end="\n\n")
    whole = {"machine": machine(), "versions": versions(packages), **facts, "rows": list(rows)}
    print(json.dumps(whole, indent=2))
    if json_file is not None:
        write_json(json_file, whole)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table; a row without a column's key has an empty cell there."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(name)) for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.0f}"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value)
    )


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the rows."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and its peak memory so far."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "peak_rss_mb": round(peak)}


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []

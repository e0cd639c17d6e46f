"""Report of a benchmark: a table for people, then one JSON object with machine and versions."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common.files import write_json

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "lightning", "peft", "numpy", "numba", "bm25s", "faiss-cpu", "faiss-gpu")


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The page as it is, and each option's default."""


def read_options(page: str | None, arguments: Sequence[str] | None, **defaults: Any) -> argparse.Namespace:
    """Options of a benchmark, named and typed by their defaults, with `--repeats`, `--threads` and `--json`.

    Args:
        page: what `--help` prints before them.
        defaults: of an option with several values a list, or a tuple of the only ones that there are.
    """
    import torch  # not where a table alone is wanted

    parser = argparse.ArgumentParser(description=page, formatter_class=_Help)
    for name, default in ({"repeats": 3, "threads": 2} | defaults).items():
        flag, words = f"--{name.replace('_', '-')}", name.replace("_", " ")
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", help=words)
        elif isinstance(default, list | tuple):
            choices = default if isinstance(default, tuple) else None
            parser.add_argument(flag, type=type(default[0]), nargs="*", default=default, choices=choices, help=words)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=words)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    return options


def report(rows: Sequence[dict[str, Any]], options: argparse.Namespace, **facts: Any) -> None:
    """Print the rows as a table, and rows, facts, machine and versions as JSON, to the file of `--json` too.

    Args:
        rows: measurements, one a line; their keys are the columns.
        options: of `read_options`.
        facts: figures of the whole run.
    """
    print(table(rows), end="\n\n")
    settings = {name: str(value) for name, value in vars(options).items()}
    whole = {"machine": machine(), "versions": versions(), "settings": settings, **facts, "rows": list(rows)}
    print(json.dumps(whole, indent=2))
    if options.json is not None:
        write_json(options.json, whole)


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


def versions() -> dict[str, str]:
    """Versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []

"""What figures read of a frozen comparison: exact match and stopping of every system, rows for each seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.results import read_json
from evaluation.statistics import bootstrap_interval

_SEED = 0  # of the bootstrap: the same seeds always give the same figure


def comparison_results(folder: Path) -> dict[str, Any]:
    """`results_of` the seeds in a folder."""
    return results_of(sorted(map(read_json, folder.glob("seed*.json")), key=lambda frozen: frozen["seed"]))


def results_of(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`figures` of the first seed, `rows` and `stopping` of all systems, as `evaluation.pages.figures` reads them."""
    return {
        "figures": seeds[0].get("figures", ["arms"]),
        "rows": [row for frozen in seeds for row in _rows(frozen)],
        "stopping": [row for frozen in seeds for row in _stopping(frozen)],
    }


def _rows(frozen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The place of a system, `dataset`, `split`, and `em` with its interval over questions."""
    dataset, _, split = frozen["benchmark"].partition("/")
    for system in frozen["systems"]:
        values = [value for value in system["values"]["em"] if value is not None]
        low, high = bootstrap_interval(values, seed=_SEED)
        yield {
            **_place(system, frozen),
            **{"dataset": dataset, "split": split, "em": math.fsum(values) / len(values)},
            **{"em_low": None if math.isnan(low) else low, "em_high": None if math.isnan(high) else high},
        }


def _stopping(frozen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for system in frozen["systems"]:
        for row in system.get("stopping", []):
            yield _place(system, frozen) | row


def _place(system: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Experiment and stage are the two parts of a name that has them; else the name is the experiment."""
    experiment, _, stage = system["name"].partition(":")
    return {"experiment": experiment, "stage": stage, "seed": frozen["seed"]}

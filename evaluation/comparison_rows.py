"""The exact match of every system of a frozen comparison, a row for each seed, as figures read it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.results import read_json
from evaluation.statistics import bootstrap_interval

_SEED = 0  # of the bootstrap: the same seeds always give the same figure


def comparison_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """`experiment` (the system's name), `seed`, `dataset`, `split`, and `em` with its interval over questions."""
    for path in sorted(folder.glob("seed*.json")):
        frozen = read_json(path)
        dataset, _, split = frozen["benchmark"].partition("/")
        for system in frozen["systems"]:
            values = [value for value in system["values"]["em"] if value is not None]
            low, high = bootstrap_interval(values, seed=_SEED)
            yield {
                **{"experiment": system["name"], "stage": "", "seed": frozen["seed"]},
                **{"dataset": dataset, "split": split, "em": math.fsum(values) / len(values)},
                **{"em_low": None if math.isnan(low) else low, "em_high": None if math.isnan(high) else high},
            }

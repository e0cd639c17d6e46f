"""Tables of a comparison that are not of its systems: how well verifiers agree with the truth, what papers report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.tables import MISSING, table

VERIFIER_LEGEND = (
    "Verdicts against the truth of the embedded world, means over seeds. κ (Cohen's kappa): agreement beyond chance."
)


def verifiers(seeds: Mapping[int, Mapping[str, Any]]) -> str:
    """A row for every `<stage>/<verifier>/<check>`, a column for every figure of it."""
    known = [frozen["verifiers"] for frozen in seeds.values()]
    names = list(dict.fromkeys(name for figures in known for name in figures))
    columns = list(dict.fromkeys(name.rpartition("/")[2] for name in names))
    rows = []
    for place in dict.fromkeys(name.rpartition("/")[0] for name in names):
        values = [[f.get(f"{place}/{column}") for f in known] for column in columns]
        rows.append([place, *(_mean_of([v for v in column if v is not None]) for column in values)])
    return table(["verifier", *columns], rows)


def _mean_of(values: Sequence[float]) -> str:
    return MISSING if not values else f"{np.mean(values):.3f}".removesuffix(".000")


def published_parts(published: Mapping[str, Any]) -> Iterator[str]:
    """Tables of `published.json`, each with its source."""
    yield published["note"]
    for part in published["tables"]:
        yield f"### {part['title']}"
        rows = [[row[0], row[1], *map(str, row[2:])] for row in part["rows"]]
        yield table(["theirs", "source", *part["columns"]], rows, labels=2)
        if part.get("note"):
            yield part["note"]

"""Figures of answers: arms side by side, a sweep of one number, curves, results by hops. Pure: from frozen results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.pages.plots import Dot, Dots, Line, Lines
from evaluation.statistics import seeds_interval

Row = Mapping[str, Any]

_NUMBERED = re.compile(r"(.*[A-Za-z]\w*?)_(\d+(?:\.\d+)?)")
_NAMED = re.compile(r"(.+), ([^,]+) = \d+(?:\.\d+)?")
_LETTERS = {"alpha": "α", "beta": "β", "gamma": "γ", "lambda": "λ"}

_POINTS = 20  # of a curve
EM = "exact match, %"
NEEDED = "one search a hop"
BY_HOPS = {
    "em": EM,
    "searches": "searches a question",
    "premature": "premature answers, %",
    "late": "late searches, %",
}


def arms(results: Row) -> Dots:
    """Exact match of every arm with its seeds, a panel for each dataset.

    Intervals are over seeds where there are several, else over questions.
    """
    panels: dict[str, dict[str, Dot]] = {}
    for (place, arm), by_seed in _by_arm(results["rows"]).items():
        values = [_shown("em", row) for row in by_seed.values() if row.get("em") is not None]
        if values:
            low, high = _seeds_interval(values) if len(values) > 1 else _question_interval(next(iter(by_seed.values())))
            dot = Dot(math.fsum(values) / len(values), low, high, values if len(values) > 1 else ())
            panels.setdefault(place, {})[arm] = dot
    return Dots(panels, "Exact match by arm", EM)


def sweep(results: Row) -> Lines:
    """Exact match against the number that ends the arms' names, a line for each family of arms, with its seeds.

    The number ends the first part of an id, or else what follows its colon. Arms without a number are what the
    families are compared with, such as the policy that all start from. An arm's display name ends in the number too,
    `SFT, β = 0.3`: the family is `SFT`, its axis β.
    """
    families: dict[str, dict[tuple[str, str], dict[float, dict[int, Row]]]] = {}
    others: dict[str, dict[str, dict[int, Row]]] = {}
    axes: dict[str, None] = {}
    labels: dict[tuple[str, str], str] = {}
    ids = {_arm(row): row.get("id", _arm(row)) for row in results["rows"]}
    for (place, arm), by_seed in _by_arm(results["rows"]).items():
        experiment, _, stage = ids[arm].partition(":")
        (family, number), (stem, last) = split_number(experiment), split_number(stage)
        if number is None and last is None:
            others.setdefault(place, {})[arm] = by_seed
            continue
        axis = f"number after {stem}_" if number is None else shown_name(family)
        key, value = ((experiment, stem), last) if number is None else ((family, stage), number)
        if named := _NAMED.fullmatch(arm):
            labels[key], axis = named.groups()
        axes[axis] = None
        families.setdefault(place, {}).setdefault(key, {})[value or 0.0] = by_seed
    panels: dict[str, dict[str, Line]] = {}
    for place, found in families.items():
        ends = sorted(number for numbers in found.values() for number in numbers)
        for arm, by_seed in others.get(place, {}).items():
            values = dict.fromkeys((ends[0], ends[-1]), by_seed)
            panels.setdefault(place, {})[arm] = _line("em", values, reference=True)
        several = len({stage for _, stage in found}) > 1
        for (family, stage), numbers in found.items():
            label = f"{shown_name(family)}: {stage}" if several else shown_name(family)
            label = labels.get((family, stage), label)
            panels.setdefault(place, {})[label] = _line("em", numbers)
    return Lines(panels, "Exact match in a sweep", ", ".join(axes), EM)


def curves(results: Row) -> Lines:
    """Exact match along training against sampled tokens, a line for each arm, with its seeds, at equal distances."""
    panels: dict[str, dict[str, Line]] = {}
    for (place, arm), by_seed in _by_arm(results["curves"]).items():
        most = max(row["tokens"][-1] for row in by_seed.values())
        grid = [most * point / _POINTS for point in range(_POINTS + 1)]
        lines = [_at(grid, row["tokens"], row["em"]) for row in by_seed.values()]
        panels.setdefault(place, {})[arm] = Line([tokens / 1000 for tokens in grid], lines)
    return Lines(panels, "Learning curves", "sampled tokens, thousands", EM)


def split_number(name: str) -> tuple[str, float | None]:
    """The name without the number that ends it, and the number; the name itself and None where there is none."""
    found = _NUMBERED.fullmatch(name)
    return (found[1], float(found[2])) if found else (name, None)


def shown_name(family: str) -> str:
    """A family of arms as a figure names it: `lambda` is λ."""
    return " ".join(_LETTERS.get(word, word) for word in family.split("_"))


def by_hops(results: Row) -> Lines:
    """Exact match, searches, premature and late answers by the number of hops, a line for each arm, with its seeds."""
    rows = [{**row, "hops": int(row["hops"])} for row in results["stopping"]]
    panels: dict[str, dict[str, Line]] = {}
    titles: dict[str, str] = {}
    for (place, arm), by_seed in _by_arm(rows, "hops").items():
        for measure, axis in BY_HOPS.items():
            numbers = {hops: rows for hops, rows in sorted(by_seed.items()) if _any(measure, rows.values())}
            if numbers:
                title = f"{place}: {measure}"
                titles[title] = axis
                panels.setdefault(title, {})[arm] = _line(measure, numbers)
                if measure == "searches":
                    panels[title][NEEDED] = Line([*numbers], [[*numbers]], reference=True)
    return Lines(panels, "Results by hops", "hops", titles, same_scale=False)


def _by_arm(rows: Iterable[Row], *keys: str) -> dict[tuple[str, str], dict[Any, Any]]:
    """Rows by (`<dataset>/<split>`, arm), then by each of the keys, then by seed."""
    found: dict[tuple[str, str], dict[Any, Any]] = {}
    for row in rows:
        inner = found.setdefault((f"{row['dataset']}/{row['split']}", _arm(row)), {})
        for key in keys:
            inner = inner.setdefault(row[key], {})
        inner[row["seed"]] = row
    return found


def _arm(row: Row) -> str:
    """The `arm` of a row that has one, else `<experiment>:<stage>`."""
    return row.get("arm") or f"{row['experiment']}:{row['stage']}"


def _at(grid: Sequence[float], tokens: Sequence[float], em: Sequence[float | None]) -> list[float]:
    """Percent at the places of a grid, between points on a straight line, NaN after the last."""
    known = [(place, 100 * value) for place, value in zip(tokens, em, strict=True) if value is not None]
    places, values = zip(*known, strict=True)
    return np.interp(grid, places, values, right=math.nan).tolist()


def _line(measure: str, numbers: Mapping[float, Mapping[int, Row]], *, reference: bool = False) -> Line:
    """The values of each seed at each number."""
    places = sorted(numbers)
    seeds = list(dict.fromkeys(seed for place in places for seed in numbers[place]))
    by_seed = [[_shown(measure, numbers[place].get(seed, {})) for place in places] for seed in seeds]
    return Line(places, by_seed, reference=reference)


def _shown(measure: str, row: Row) -> float:
    value = row.get(measure)
    return math.nan if value is None else value if measure == "searches" else 100 * value


def _seeds_interval(percents: Sequence[float]) -> tuple[float, float]:
    """The interval over seeds; it ends at 0 and at 100."""
    low, high = seeds_interval(percents)
    return max(low, 0.0), min(high, 100.0)


def _question_interval(row: Row) -> tuple[float | None, float | None]:
    low, high = (None if row.get(key) is None else 100 * row[key] for key in ("em_low", "em_high"))
    return low, high


def _any(measure: str, rows: Iterable[Row]) -> bool:
    return any(row.get(measure) is not None for row in rows)

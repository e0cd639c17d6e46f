"""The values of a figure as a table, header and rows, for those who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evaluation.pages.plots import Dot, Line
from evaluation.tables import MISSING

Table = tuple[list[str], list[list[str]]]
Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]  # by tag and stage: points (update, value)


def dot_values(panels: Mapping[str, Mapping[str, Dot]], header: Sequence[str], *, digits: int = 3) -> Table:
    """A row for each dot with its interval, and a column for each thing it is compared with, last its single seeds."""
    dots = [(panel, label, dot) for panel, rows in panels.items() for label, dot in rows.items()]
    others = list(dict.fromkeys(name for *_, dot in dots for name in dot.beside))
    rows = [
        [panel, label, _interval(dot, digits), *(_number(dot.beside.get(other), digits) for other in others)]
        for panel, label, dot in dots
    ]
    if not any(dot.seeds for *_, dot in dots):
        return [*header, *others], rows
    seeds = [", ".join(_number(value, digits) for value in dot.seeds) or MISSING for *_, dot in dots]
    return [*header, *others, "single seeds"], [[*row, each] for row, each in zip(rows, seeds, strict=True)]


def line_values(panels: Mapping[str, Mapping[str, Line]], header: Sequence[str]) -> Table:
    """A row for each point of each line: the mean over its seeds."""
    return [*header], [
        [panel, label, f"{x:.3g}", _number(y)]
        for panel, rows in panels.items()
        for label, line in rows.items()
        for x, y in zip(line.x, line.mean, strict=True)
    ]


def curve_values(curves: Curves) -> Table:
    """A row for each curve: where it starts, ends, and how far it goes."""
    rows: list[list[str]] = []
    for tag, series in curves.items():
        for stage, points in series.items():
            x, y = zip(*points, strict=True)
            rows.append([tag, stage, f"{x[0]:.0f} to {x[-1]:.0f}", *map(_number, (y[0], y[-1], min(y), max(y)))])
    return ["tag", "stage", "updates", "first", "last", "least", "most"], rows


def _interval(dot: Dot, digits: int) -> str:
    bounds = "" if dot.low is None else f" [{_number(dot.low, digits)}, {_number(dot.high, digits)}]"
    return _number(dot.value, digits) + bounds


def _number(value: float | None, digits: int = 3) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"

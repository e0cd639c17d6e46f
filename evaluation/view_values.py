"""The values of a figure as a table, header and rows, for those who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evaluation.plots import Dot, Line
from evaluation.tables import MISSING

Table = tuple[list[str], list[list[str]]]
Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]  # by tag and stage: points (update, value)


def dot_values(panels: Mapping[str, Mapping[str, Dot]], header: Sequence[str]) -> Table:
    """A row for each dot with its interval, and a column for each thing it is compared with."""
    dots = [(panel, label, dot) for panel, rows in panels.items() for label, dot in rows.items()]
    others = list(dict.fromkeys(name for *_, dot in dots for name in dot.beside))
    rows = [[panel, label, _interval(dot), *(_three(dot.beside.get(o)) for o in others)] for panel, label, dot in dots]
    return [*header, *others], rows


def line_values(panels: Mapping[str, Mapping[str, Line]], header: Sequence[str]) -> Table:
    """A row for each point of each line: the mean over its seeds."""
    return [*header], [
        [panel, label, f"{x:.3g}", _three(y)]
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
            rows.append([tag, stage, f"{x[0]:.0f} to {x[-1]:.0f}", *map(_three, (y[0], y[-1], min(y), max(y)))])
    return ["tag", "stage", "updates", "first", "last", "least", "most"], rows


def _interval(dot: Dot) -> str:
    return _three(dot.value) + (f" [{_three(dot.low)}, {_three(dot.high)}]" if dot.low is not None else "")


def _three(value: float | None) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.3f}"

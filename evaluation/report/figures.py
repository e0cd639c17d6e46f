"""Figures of a page, each with its values as a table: those of the results pages, and the learning curves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from evaluation.pages.plots import Dot, Line
from evaluation.pages.ranking_figures import auc_panels, reliability_panels
from evaluation.pages.result_figures import EM, arms_panels, hops_panels
from evaluation.report.run import Run
from evaluation.tables import MISSING

_Item = TypeVar("_Item")
Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
Curves = dict[str, dict[str, list[tuple[float, float]]]]  # by tag and stage: points (update, value)

# What a page draws, of each fit that has it; all else is in TensorBoard.
_TAGS = (
    *(r"eval/.+/em", r"eval/.+/flawed", r"eval/.+/searches", "reward", "step_reward", "entropy", "kl"),
    *("format/valid_rate", "prm/pair_accuracy", "loss"),
)
_POINTS = 300  # of a curve, spread evenly over it


def result_figures(results: Mapping[str, Any]) -> dict[str, Row]:
    """Those figures of the results pages that these results have, by name: what the script draws, and the `values`.

    The values of `arms` are the table of results, but for means over several seeds.
    """
    by_arm, ranked = arms_panels(results), auc_panels(results)
    hops, titles = hops_panels(results)
    reliable = reliability_panels(results)
    seeds = any(dot.seeds for rows in by_arm.values() for dot in rows.values())
    found = {
        "arms": _dots(by_arm, EM) | {"values": dot_values(by_arm, ("dataset", "arm", EM), digits=1) if seeds else None},
        "hops": _lines(hops, "hops", titles) | {"values": line_values(hops, ("figure", "arm", "hops", "value"))},
        "auc": _dots(ranked, "AUC", 0.5) | {"values": dot_values(ranked, ("kind of step", "score", "AUC"))},
        "reliability": _lines(reliable, "predicted share of true steps", {}, shares=True)
        | {"values": line_values(reliable, ("kind of step", "score", "predicted", "true"))},
    }
    return {name: figure for name, figure in found.items() if figure["panels"]}


def curves_figure(found: Curves) -> Row:
    """The learning curves of a run, a panel for each tag."""
    panels = {tag: {stage: {"points": points} for stage, points in series.items()} for tag, series in found.items()}
    return {"x": "updates", "panels": panels, "values": curve_values(found)}


def _dots(panels: Mapping[str, Mapping[str, Dot]], axis: str, chance: float | None = None) -> Row:
    drawn = {name: {label: asdict(dot) for label, dot in rows.items()} for name, rows in panels.items()}
    return {"axis": axis, "chance": chance, "panels": drawn}


def _lines(panels: Mapping[str, Mapping[str, Line]], x: str, titles: Mapping[str, str], *, shares: bool = False) -> Row:
    """Lines: the points of their means and of single seeds, and the weight of each; `titles` are of the panels."""
    drawn: dict[str, Any] = {}
    for name, rows in panels.items():
        title = f"{name.rpartition(': ')[0]}: {titles[name]}" if name in titles else name
        drawn[title] = {
            label: {
                "points": _points(line.x, line.mean),
                "seeds": [_points(line.x, values) for values in line.by_seed] if len(line.by_seed) > 1 else [],
                "sizes": [size / max(line.sizes) for size in line.sizes] if line.sizes else None,
                "reference": line.reference,
            }
            for label, line in rows.items()
        }
    return {"x": x, "panels": drawn, "shares": shares}


def _points(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    return [(place, value) for place, value in zip(x, y, strict=True) if not math.isnan(value)]


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


def curves(run: Run) -> Curves:
    """The learning curves of the stages that fit a model, also of one that is not finished, from TensorBoard's events.

    Stages that make records are left out: they draw one point of each metric.
    """
    from tensorboard.backend.event_processing import event_accumulator  # takes seconds to import

    size = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 1}  # 0: all, for a sample would be random
    read = {}
    for name, stage in run.stages.items():
        fits = stage.state != "finished" or stage.manifest.get("kind") == "fit"
        if fits and any((run.folder / name).glob("events.out.tfevents.*")):
            read[name] = event_accumulator.EventAccumulator(str(run.folder / name), size).Reload()
    found: Curves = {}
    for pattern in _TAGS:
        for stage, events in read.items():
            for tag in events.Tags()["scalars"]:
                if re.fullmatch(pattern, tag):
                    points = [(float(e.step), float(e.value)) for e in events.Scalars(tag) if math.isfinite(e.value)]
                    if len(points) > 1:
                        found.setdefault(tag, {})[stage] = thinned(points, _POINTS)
    return found


def curve_values(found: Curves) -> Table:
    """A row for each curve: where it starts, ends, and how far it goes."""
    rows: list[list[str]] = []
    for tag, series in found.items():
        for stage, points in series.items():
            x, y = zip(*points, strict=True)
            rows.append([tag, stage, f"{x[0]:.0f} to {x[-1]:.0f}", *map(_number, (y[0], y[-1], min(y), max(y)))])
    return ["tag", "stage", "updates", "first", "last", "least", "most"], rows


def thinned(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` (two or more) of the items at equal distances, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    gap = (len(items) - 1) / (most - 1)
    return [items[round(place * gap)] for place in range(most)]


def _interval(dot: Dot, digits: int) -> str:
    bounds = "" if dot.low is None else f" [{_number(dot.low, digits)}, {_number(dot.high, digits)}]"
    return _number(dot.value, digits) + bounds


def _number(value: float | None, digits: int = 3) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"

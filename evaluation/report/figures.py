"""Figures of a page, as values that its script draws: those of the results pages, and the learning curves."""

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

_Item = TypeVar("_Item")
Row = dict[str, Any]
Curves = dict[str, dict[str, list[tuple[float, float]]]]  # by tag and stage: points (update, value)

# What a page draws, of each fit that has it; all else is in TensorBoard.
_TAGS = (
    *(r"eval/.+/em", r"eval/.+/flawed", r"eval/.+/searches", "reward", "step_reward", "entropy", "kl"),
    *("format/valid_rate", "prm/pair_accuracy", "loss"),
)
_POINTS = 300  # of a curve, spread evenly over it


def result_figures(results: Mapping[str, Any]) -> dict[str, Row]:
    """Those figures of the results pages that these results have, by name, and what their places and values are."""
    hops, titles = hops_panels(results)
    reliable = reliability_panels(results)
    found = {
        "arms": _dots(arms_panels(results), "dataset", EM),
        "hops": _lines(hops, "figure", "hops", titles),
        "auc": _dots(auc_panels(results), "kind of step", "AUC", chance=0.5),
        "reliability": _lines(reliable, "kind of step", "predicted share of true steps", shares=True),
    }
    return {name: figure for name, figure in found.items() if figure["panels"]}


def curves_figure(found: Curves) -> Row:
    """The learning curves of a run, a panel for each tag."""
    panels = {tag: {stage: {"points": points} for stage, points in series.items()} for tag, series in found.items()}
    return {"of": "tag", "x": "updates", "panels": panels}


def _dots(panels: Mapping[str, Mapping[str, Dot]], of: str, axis: str, *, chance: float | None = None) -> Row:
    drawn = {name: {label: asdict(dot) for label, dot in rows.items()} for name, rows in panels.items()}
    return {"of": of, "axis": axis, "chance": chance, "panels": drawn}


def _lines(
    panels: Mapping[str, Mapping[str, Line]],
    of: str,
    x: str,
    titles: Mapping[str, str] | None = None,
    *,
    shares: bool = False,
) -> Row:
    """Lines: the points of their means and of single seeds, and the weight of each; `titles` are of the panels."""
    drawn: dict[str, Any] = {}
    for name, rows in panels.items():
        title = f"{name.rpartition(': ')[0]}: {titles[name]}" if titles else name
        drawn[title] = {
            label: {
                "points": _points(line.x, line.mean),
                "seeds": [_points(line.x, values) for values in line.by_seed] if len(line.by_seed) > 1 else [],
                "sizes": [size / max(line.sizes) for size in line.sizes] if line.sizes else None,
                "reference": line.reference,
            }
            for label, line in rows.items()
        }
    return {"of": of, "x": x, "panels": drawn, "shares": shares}


def _points(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    return [(place, value) for place, value in zip(x, y, strict=True) if not math.isnan(value)]


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


def thinned(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` (two or more) of the items at equal distances, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    gap = (len(items) - 1) / (most - 1)
    return [items[round(place * gap)] for place in range(most)]

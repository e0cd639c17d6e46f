"""Figures of a page, as values that its script draws: those of the results pages, and the learning curves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from evaluation.pages.plots import Lines
from evaluation.pages.ranking_figures import auc_by_kind, reliability
from evaluation.pages.result_figures import arms, by_hops
from evaluation.report.run import Run

_Item = TypeVar("_Item")
Row = dict[str, Any]
Curves = dict[str, dict[str, list[tuple[float, float]]]]  # by tag and stage: points (update, value)

# What a page draws, of each fit that has it; all else is in TensorBoard.
_TAGS = (
    *(r"eval/.+/em", r"eval/.+/flawed", r"eval/.+/searches", "reward", "step_reward", "entropy", "kl"),
    *("format/valid_rate", "prm/pair_accuracy", "loss"),
)
_SHARES = r"eval/.+/(em|flawed)|format/valid_rate|prm/pair_accuracy"  # of these: their axes end at 0 and at 1
_POINTS = 300  # of a curve, spread evenly over it


def result_figures(results: Mapping[str, Any]) -> dict[str, Row]:
    """Those figures of the results pages that these results have, by name, and what their places and values are."""
    found = {
        "arms": asdict(arms(results)) | {"of": "dataset", "most": 100},
        "hops": _lines(by_hops(results), "figure"),
        "auc": asdict(auc_by_kind(results)) | {"of": "kind of step", "most": 1},
        "reliability": _lines(reliability(results), "kind of step"),
    }
    return {name: figure for name, figure in found.items() if figure["panels"]}


def curves_figure(found: Curves) -> Row:
    """The learning curves of a run, a panel for each tag; `most` is where an axis ends at the latest."""
    panels = {tag: {stage: {"points": points} for stage, points in series.items()} for tag, series in found.items()}
    most = {tag: 1 for tag in found if re.fullmatch(_SHARES, tag)}
    return {"of": "tag", "x": "updates", "panels": panels, "most": most}


def _lines(figure: Lines, of: str) -> Row:
    """Lines: the points of their means and of single seeds, and the weight of each."""
    drawn: dict[str, Any] = {}
    for name, rows in figure.panels.items():
        title = name if isinstance(figure.y, str) else f"{name.rpartition(': ')[0]}: {figure.y[name]}"
        drawn[title] = {
            label: {
                "points": _points(line.x, line.mean),
                "seeds": [_points(line.x, values) for values in line.by_seed] if len(line.by_seed) > 1 else [],
                "sizes": [size / max(line.sizes) for size in line.sizes] if line.sizes else None,
                "reference": line.reference,
            }
            for label, line in rows.items()
        }
    most = {title: 100 for title in drawn if title.endswith("%")}
    return {"of": of, "x": figure.x, "panels": drawn, "shares": figure.shares, "most": most}


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

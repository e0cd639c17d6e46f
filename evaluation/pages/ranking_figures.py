"""Figures of step rankings: AUC by kind of step, reliability, and learning curves. Pure: from frozen results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.pages.plots import Dot, Dots, Line, Lines
from evaluation.pages.result_figures import split_number
from evaluation.steps.rankings import arm_label, by_seed
from evaluation.steps.step_auc import LOGP, POOLED, POSITION, title

Row = Mapping[str, Any]


def auc_by_kind(results: Row) -> Dots:
    """AUC within each kind of step: of every score where there is one ranking, else of every arm's reward models.

    Intervals are over seeds where there are several, else over questions.
    """
    rankings: Sequence[Row] = results["rankings"]
    several = len(rankings) > 1
    panels: dict[str, dict[str, Dot]] = {}
    for ranking in rankings:
        for group in ranking["groups"]:
            for name, figures in group["scorers"].items() if group["group"] != POOLED else ():
                if figures["auc"] is not None and (not several or name in ranking["scorers"]):
                    beside = {other: group["scorers"][other]["auc"] for other in (LOGP, POSITION)} if several else {}
                    label = arm_label(ranking, name) if several else name
                    panels.setdefault(title(group["group"]), {})[label] = _dot(figures, beside)
    least = min((dot.value for rows in panels.values() for dot in rows.values()), default=1.0)
    return Dots(panels, "AUC by kind of step", "AUC", chance=0.5, limits=(min(0.4, least - 0.05), 1.01))


def reliability(results: Row) -> Lines:
    """The share of true steps against the score read as a probability, by kind of step, a line for each reward model.

    Kinds without true or without untrue steps are left out. Steps of all seeds are put together; the legend has the
    expected calibration error over all kinds, its mean over seeds; tables have it by kind.
    """
    panels: dict[str, dict[str, Line]] = {}
    for ranking in results["rankings"]:
        for scorer, runs in ranking["calibration"].items():
            pooled = [group["ece"] for groups in runs for group in groups if group["group"] == POOLED]
            for kind in dict.fromkeys(g["group"] for groups in runs for g in groups if 0 < g["true"] < 1):
                bins = [group["bins"] for groups in runs for group in groups if group["group"] == kind]
                label = f"{arm_label(ranking, scorer)} (error of all kinds {np.mean(pooled):.3f})"
                panels.setdefault(title(kind), {})[label] = _curve(bins)
    x = "predicted share of true steps"
    return Lines(panels, "Reliability of scores by kind of step", x, "observed share", shares=True)


def learning_curves(results: Row) -> Lines:
    """AUC within each kind of step against the number of judged steps, a line for each family of arms."""
    families: dict[str, list[Row]] = {}
    for ranking in results["rankings"]:
        if all(ranking["judged_steps"]):
            families.setdefault(split_number(ranking["experiment"])[0], []).append(ranking)
    panels: dict[str, dict[str, Line]] = {}
    for family, members in families.items():
        if len(members) > 1:  # `Single steps, 300 judged`
            family = members[0].get("name", "").rpartition(", ")[0] or family
        for kind, label, name, reference in _curves(family, members):
            points = [(float(np.mean(m["judged_steps"])), by_seed(m, kind, name)) for m in members]
            points.sort(key=lambda point: point[0])
            seeds = list(dict.fromkeys(seed for _, found in points for seed in found))
            if seeds:
                values = [[found.get(seed, math.nan) for _, found in points] for seed in seeds]
                line = Line([place for place, _ in points], values, reference=reference)
                panels.setdefault(title(kind), {})[label] = line
    return Lines(panels, "AUC by number of judged steps", "judged steps", "AUC", logarithmic=True)


def _curves(family: str, members: Sequence[Row]) -> Iterator[tuple[str, str, str, bool]]:
    """Kind, label, score, and whether it is a reference, of each line of a family."""
    for kind in dict.fromkeys(group["group"] for member in members for group in member["groups"]):
        if kind != POOLED:
            for scorer in members[0]["scorers"]:
                yield kind, family if scorer == "prm" else f"{family}: {scorer}", scorer, False
            yield kind, LOGP, LOGP, True


def _dot(figures: Row, beside: Mapping[str, float]) -> Dot:
    over = "auc_seeds" if "auc_seeds" in figures else "auc"
    seeds = [value for value in figures.get("auc_seeds", ()) if value is not None]
    low, high = (figures[f"{over}_{end}"] for end in ("low", "high"))
    bounds = (None, None) if low is None else (max(low, 0.0), min(high, 1.0))
    return Dot(figures["auc"], *bounds, seeds, beside)


def _curve(bins: Sequence[Row]) -> Line:
    """The bins of all seeds put together, without those that are empty."""
    n, predicted, true = (
        np.array([[math.nan if value is None else value for value in part[key]] for part in bins])
        for key in ("n", "predicted", "true")
    )
    known = n.sum(axis=0) > 0
    weights = (n / np.maximum(n.sum(axis=0), 1))[:, known]
    x, y = (np.nansum(part[:, known] * weights, axis=0).tolist() for part in (predicted, true))
    return Line(x, [y], sizes=n.sum(axis=0)[known].tolist())

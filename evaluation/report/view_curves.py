"""Learning curves of a run, read from TensorBoard's events."""

from __future__ import annotations

import math
import re

from evaluation.report.view_run import Run

# What a page draws, of each fit that has it; all else is in TensorBoard.
_TAGS = (
    *(r"eval/.+/em", r"eval/.+/flawed", r"eval/.+/searches", "reward", "step_reward", "entropy", "kl"),
    *("format/valid_rate", "prm/pair_accuracy", "loss"),
)
_POINTS = 300  # of a curve, spread evenly over it

Panels = dict[str, dict[str, list[tuple[float, float]]]]


def curves(run: Run) -> Panels:
    """Points (update, value) by tag and stage, of the stages that fit, also of one that is not finished."""
    from tensorboard.backend.event_processing import event_accumulator  # takes seconds to import

    size = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 1}  # 0: all, for a sample would be random
    read = {}
    for name in run.stages:
        folder = run.folder / name
        if any(folder.glob("events.out.tfevents.*")) and _fits(run, name):
            read[name] = event_accumulator.EventAccumulator(str(folder), size).Reload()
    panels: Panels = {}
    for pattern in _TAGS:
        for stage, events in read.items():
            for tag in events.Tags()["scalars"]:
                if re.fullmatch(pattern, tag):
                    points = [(float(e.step), float(e.value)) for e in events.Scalars(tag) if math.isfinite(e.value)]
                    if len(points) > 1:
                        panels.setdefault(tag, {})[stage] = thinned(points)
    return panels


def thinned(points: list[tuple[float, float]], most: int = _POINTS) -> list[tuple[float, float]]:
    """At most `most` of the points at equal distances, the first and the last among them."""
    if len(points) <= most:
        return points
    gap = (len(points) - 1) / (most - 1)
    return [points[round(place * gap)] for place in range(most)]


def _fits(run: Run, name: str) -> bool:
    """Whether a stage fits a model: those that make records draw one point of each metric."""
    stage = run.stages[name]
    return stage.manifest.get("kind") == "fit" if stage.state == "finished" else True

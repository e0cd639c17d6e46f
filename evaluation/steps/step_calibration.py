"""Calibration of step scores read as log-odds that the step is true, by kind of step. Pure.

A reward of reinforcement learning is the sigmoid of a score, and refinement compares scores with a threshold: both read
the score as log-odds. Ranking well is not enough for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.statistics import Floats
from evaluation.steps.ranking import draw_questions, interval
from evaluation.steps.step_auc import POOLED, prefix_of

BINS = 10

Row = dict[str, Any]


def calibration(rows: Sequence[Row], scorer: str, *, seed: int = 0) -> list[Row]:
    """Calibration of a scorer's scores: a group for each kind of step, then `pooled`.

    `ece` is the expected calibration error (Naeini et al. 2015): the mean of |share of true steps − mean probability|
    over bins of equal width, weighed by their steps; `ece_low` and `ece_high` bound a 95 % bootstrap interval over
    questions. `bins` are the reliability curve: in each of `BINS` bins `n` steps, the mean probability `predicted` and
    the share of `true` ones, None where a bin is empty. `accuracy_at_0` is how
    often a score above 0 agrees with the truth. Steps without score are left out; a kind without any is not listed.

    Args:
        rows: as in `evaluation.steps.step_auc:measure_groups`.
        scorer: the name of the score.
        seed: of the interval.
    """
    scored = [row for row in rows if row["scores"][scorer] is not None]
    if not scored:
        return []
    scores = np.array([row["scores"][scorer] for row in scored], dtype=float)
    true = np.array([row["valid"] for row in scored], dtype=bool)
    draws_RN = draw_questions([row["id"] for row in scored], seed=seed)
    kinds = np.array([row["kind"] for row in scored])
    parts = {kind: kinds == kind for kind in sorted(set(kinds.tolist()))} | {POOLED: np.full(len(scored), True)}
    return [{"group": name, **_measured(scores[used], true[used], draws_RN[:, used])} for name, used in parts.items()]


def calibration_headline(calibrations: Mapping[str, Sequence[Row]]) -> dict[str, float]:
    """Metrics of a manifest from the calibration by scorer: `prm/ece/<group>`, and `prm/accuracy_at_0` of all steps.

    The scorer called `prm` is just `prm`, another one is `prm/<name>`.
    """
    values: dict[str, float] = {}
    for name, groups in calibrations.items():
        prefix = prefix_of(name)
        values |= {f"{prefix}/ece/{group['group']}": group["ece"] for group in groups}
        values |= {f"{prefix}/accuracy_at_0": g["accuracy_at_0"] for g in groups if g["group"] == POOLED}
    return values


def reliability(probabilities: Floats, true: NDArray[np.bool_], weights_RN: Floats) -> tuple[Floats, Floats, Floats]:
    """Steps, sum of probabilities and true steps of each of `BINS` bins of equal width, each `[R, BINS]`.

    Args:
        probabilities: `[N]` in [0, 1]; a bin holds its lower end, the last one also its upper end.
        true: `[N]`.
        weights_RN: `[R, N]`, how often each step counts.
    """
    place = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    inside_NB = (place[:, None] == np.arange(BINS)).astype(float)
    parts = np.ones(len(true)), probabilities, true
    count, predicted, right = ((weights_RN * part) @ inside_NB for part in parts)
    return count, predicted, right


def expected_error(count_RB: Floats, predicted_RB: Floats, right_RB: Floats) -> Floats:
    """The expected calibration error `[R]` of what `reliability` returns; NaN where no step counts."""
    with np.errstate(invalid="ignore"):
        return np.abs(right_RB - predicted_RB).sum(axis=1) / count_RB.sum(axis=1)


def _measured(scores: Floats, true: NDArray[np.bool_], draws_RN: Floats) -> Row:
    probabilities = 1 / (1 + np.exp(-np.clip(scores, -700, 700)))
    counted = reliability(probabilities, true, np.vstack([np.ones(len(true)), draws_RN]))
    errors = expected_error(*counted)
    low, high = interval(errors[1:])
    count, predicted, right = (part[0] for part in counted)
    return {
        "n": len(true),
        "true": float(true.mean()),
        "ece": float(errors[0]),
        "ece_low": low if math.isfinite(low) else None,
        "ece_high": high if math.isfinite(high) else None,
        "accuracy_at_0": float(((scores > 0) == true).mean()),
        "bins": {
            "n": count.astype(int).tolist(),
            "predicted": _shares(predicted, count),
            "true": _shares(right, count),
        },
    }


def _shares(part: Floats, count: Floats) -> list[float | None]:
    return [float(top / bottom) if bottom else None for top, bottom in zip(part, count, strict=True)]

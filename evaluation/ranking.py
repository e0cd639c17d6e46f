"""How well scores rank true above untrue: the area under the ROC curve, with intervals by question."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from common.seeds import stable_hash
from evaluation.statistics import Floats


def auc(scores: ArrayLike, true: ArrayLike, weights: ArrayLike | None = None) -> float:
    """The chance that a true step, drawn by weight, scores above an untrue one; ties count half.

    NaN where all are true or none is. Source: Hanley & McNeil 1982.

    Args:
        scores: `[N]`.
        true: `[N]` bool.
        weights: `[N]`, how often each counts; once where absent.
    """
    scores, true = np.asarray(scores, dtype=float), np.asarray(true, dtype=bool)
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, dtype=float)
    _, level = np.unique(scores, return_inverse=True)
    count = int(level.max(initial=-1)) + 1
    true_at = np.bincount(level[true], weights[true], minlength=count)
    untrue_at = np.bincount(level[~true], weights[~true], minlength=count)
    pairs = true_at.sum() * untrue_at.sum()
    below = np.cumsum(untrue_at) - untrue_at / 2
    return float(true_at @ below / pairs) if pairs else float("nan")


def draw_questions(questions: Sequence[str], *, seed: int, resamples: int = 500) -> Floats:
    """How often each step counts, `[resamples, N]`: questions are drawn with replacement, each with all its steps.

    The draws depend on the seed and the questions alone, so AUCs of two scorers on the same draws can be subtracted.

    Args:
        questions: the question id of each of N steps.
        seed: of the draws.
        resamples: how many.
    """
    _, question = np.unique(np.asarray(questions), return_inverse=True)
    count = int(question.max(initial=-1)) + 1
    generator = np.random.default_rng(stable_hash(seed, "auc"))
    drawn = generator.multinomial(count, np.full(count, 1 / max(count, 1)), size=resamples)
    return drawn[:, question].astype(float)


def interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """The (1 ∓ level)/2 quantiles of the values that are not NaN; NaN where there is none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

"""How well scores rank what is right above what is wrong: the area under the ROC curve, with intervals by question."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from common.seeds import stable_hash
from evaluation.statistics import Floats


def auc(scores: ArrayLike, right: ArrayLike, weights: ArrayLike | None = None) -> float:
    """The chance that a right one, drawn by weight, scores above a wrong one; ties count half, NaN for one side alone.

    Source: Hanley & McNeil 1982.

    Args:
        scores: `[N]`.
        right: `[N]`, true where right.
        weights: `[N]`, how often each counts; once where absent.
    """
    scores, right = np.asarray(scores, dtype=float), np.asarray(right, dtype=bool)
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, dtype=float)
    _, level = np.unique(scores, return_inverse=True)
    count = int(level.max(initial=-1)) + 1
    right_at = np.bincount(level[right], weights[right], minlength=count)
    wrong_at = np.bincount(level[~right], weights[~right], minlength=count)
    pairs = right_at.sum() * wrong_at.sum()
    below = np.cumsum(wrong_at) - wrong_at / 2
    return float(right_at @ below / pairs) if pairs else float("nan")


def auc_resampled(
    scores: ArrayLike, right: ArrayLike, questions: Sequence[str], *, seed: int, resamples: int = 500
) -> Floats:
    """AUCs `[resamples]` over questions drawn with replacement, with all steps of a question together.

    The draws depend on the seed and the questions alone, so those of two scorers of the same steps can be subtracted.
    """
    _, question = np.unique(np.asarray(questions), return_inverse=True)
    count = int(question.max(initial=-1)) + 1
    generator = np.random.default_rng(stable_hash(seed, "auc"))
    drawn = generator.multinomial(count, np.full(count, 1 / max(count, 1)), size=resamples)
    return np.array([auc(scores, right, weights[question]) for weights in drawn])


def interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """The (1 ∓ level)/2 quantiles; NaN where no value is a number."""
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

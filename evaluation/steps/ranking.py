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
    weights = np.ones(np.shape(scores)) if weights is None else np.asarray(weights, dtype=float)
    return float(aucs(scores, true, weights[None])[0])


def aucs(scores: ArrayLike, true: ArrayLike, weights_RN: Floats) -> Floats:
    """`auc` under each of R weightings of the same N scores, `[R]`."""
    scores, true = np.asarray(scores, dtype=float), np.asarray(true, dtype=bool)
    order = np.argsort(scores, kind="stable")
    ranked, weights_RN, true = scores[order], weights_RN[:, order], true[order]
    level = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))  # where each distinct score begins
    true_RL = np.add.reduceat(weights_RN * true, level, axis=1)
    untrue_RL = np.add.reduceat(weights_RN * ~true, level, axis=1)
    pairs_R = true_RL.sum(1) * untrue_RL.sum(1)
    below_RL = np.cumsum(untrue_RL, axis=1) - untrue_RL / 2
    with np.errstate(invalid="ignore"):
        return (true_RL * below_RL).sum(1) / pairs_R


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

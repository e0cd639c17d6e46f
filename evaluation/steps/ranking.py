"""Ranking of true above untrue steps: the area under the ROC curve, intervals by question, scores combined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.seeds import stable_hash
from evaluation.statistics import BOUNDS, Floats
from modules.reward_model.logistic import logistic


def aucs(scores: ArrayLike, true: ArrayLike, weights_RN: Floats) -> Floats:
    """The chance that a true step, drawn by weight, scores above an untrue one, `[R]`; ties count half.

    NaN where all are true or none is. Source: Hanley & McNeil 1982.

    Args:
        scores: `[N]`.
        true: `[N]` bool.
        weights_RN: `[R, N]`, how often each step counts, under each of R weightings.
    """
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
    """Bootstrap weights of steps, `[resamples, N]`: questions are drawn with replacement, each with all its steps.

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


def interval(values: Floats) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of the values that are not NaN; NaN where there is none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, BOUNDS)
    return float(low), float(high)


def cross_fitted(features_ND: Floats, true: NDArray[np.bool_], questions: Sequence[str], *, folds: int = 5) -> Floats:
    """Log-odds `[N]` that each step is true, by logistic regression on the steps of other questions.

    Questions are dealt to `folds` by hash, and each fold is scored by the fit of the others. A step of which a feature
    is not finite takes part in no fit and gets −∞.

    Args:
        features_ND: `[N, D]`, D scores of each step.
        true: `[N]`.
        questions: the question id of each step.
        folds: how many.
    """
    fold = np.array([stable_hash("fold", question) % folds for question in questions])
    known = np.isfinite(features_ND).all(axis=1)
    fitted = np.full(len(true), -np.inf)
    for number in range(folds):
        others, own = known & (fold != number), known & (fold == number)
        if own.any():
            centre, spread = _scale(features_ND[others])
            weights = logistic(_design(features_ND[others], centre, spread), true[others].astype(float))
            fitted[own] = _design(features_ND[own], centre, spread) @ weights
    return fitted


def _design(features_ND: Floats, centre_D: Floats, spread_D: Floats) -> Floats:
    """`[N, D + 1]`: features around 0 and of one size, and a constant."""
    return np.column_stack([(features_ND - centre_D) / spread_D, np.ones(len(features_ND))])


def _scale(features_ND: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each feature; 0 and 1 without any step, 1 for a feature that is constant."""
    if not len(features_ND):
        return np.zeros(features_ND.shape[1]), np.ones(features_ND.shape[1])
    spread = features_ND.std(axis=0)
    return features_ND.mean(axis=0), np.where(spread > 0, spread, 1.0)

"""Several scores of a step combined into one, without scoring any step by a fit that saw its question."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.seeds import stable_hash
from evaluation.statistics import Floats
from modules.reward_model.logistic import logistic


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

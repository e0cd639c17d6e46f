"""Several scores of a step combined into one, without scoring any step by a fit that saw its question."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from common.seeds import stable_hash
from evaluation.statistics import Floats


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
            weights = logistic((features_ND[others] - centre) / spread, true[others])
            fitted[own] = _log_odds((features_ND[own] - centre) / spread, weights)
    return fitted


def logistic(features_ND: Floats, true: NDArray[np.bool_], *, ridge: float = 1.0) -> Floats:
    """Weights `[D + 1]` of a logistic regression, the constant last: the least of log loss + ½ · ridge · |weights|².

    The penalty keeps weights finite where the features separate true from untrue.
    """
    design = np.column_stack([features_ND, np.ones(len(features_ND))])
    signs = np.where(true, 1.0, -1.0)

    def miss(weights: Floats) -> Floats:  # the probability that each step is what it is not
        return 1 / (1 + np.exp(np.clip(signs * (design @ weights), -700, 700)))

    def loss(weights: Floats) -> float:
        return float(np.logaddexp(0, -signs * (design @ weights)).sum() + ridge * weights @ weights / 2)

    def gradient(weights: Floats) -> Floats:
        return ridge * weights - design.T @ (signs * miss(weights))

    def curvature(weights: Floats) -> Floats:
        wrong = miss(weights)
        return ridge * np.eye(len(weights)) + design.T @ (design * (wrong * (1 - wrong))[:, None])

    start = np.zeros(design.shape[1])
    return minimize(loss, start, jac=gradient, hess=curvature, method="trust-exact", options={"gtol": 1e-6}).x


def _log_odds(features_ND: Floats, weights: Floats) -> Floats:
    return features_ND @ weights[:-1] + weights[-1]


def _scale(features_ND: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each feature; 0 and 1 without any step, 1 for a feature that is constant."""
    if not len(features_ND):
        return np.zeros(features_ND.shape[1]), np.ones(features_ND.shape[1])
    spread = features_ND.std(axis=0)
    return features_ND.mean(axis=0), np.where(spread > 0, spread, 1.0)

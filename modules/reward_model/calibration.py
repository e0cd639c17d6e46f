"""Platt scaling: from scores that only rank to log-odds, so that a threshold has a meaning."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize


def platt(positive: ArrayLike, negative: ArrayLike) -> tuple[float, float]:
    """(scale, offset) such that `scale * score + offset` is the log-odds that a score belongs to a positive.

    Fitted by maximum likelihood. Targets are smoothed, so that separable scores get a finite scale. Both sides have the
    same total weight, so 0 means even odds under equal priors. The scale is positive: the order of scores is kept.
    Source: Platt 1999, with the targets of his Eq 5.

    Args:
        positive: scores `[P]` of valid steps.
        negative: scores `[N]` of invalid ones.

    Raises:
        ValueError: one side is empty.
    """
    right, wrong = np.asarray(positive, dtype=float), np.asarray(negative, dtype=float)
    if not len(right) or not len(wrong):
        raise ValueError(f"calibration needs scores of both sides, got {len(right)} and {len(wrong)}")
    target = np.repeat([(len(right) + 1) / (len(right) + 2), 1 / (len(wrong) + 2)], [len(right), len(wrong)])
    weight = np.repeat([0.5 / len(right), 0.5 / len(wrong)], [len(right), len(wrong)])
    return _fitted(np.concatenate([right, wrong]), target, weight)


def platt_of_labels(scores: ArrayLike, labels: ArrayLike) -> tuple[float, float]:
    """(scale, offset) such that `scale * score + offset` is the log-odds that a step is right, among steps like these.

    As `platt`, but every step weighs the same, so 0 means even odds where right steps are as frequent as here. A label
    in (0, 1) counts as that share of a right step. Labels are smoothed as the targets of `platt` are.

    Args:
        scores: `[P]`.
        labels: `[P]`, in [0, 1].

    Raises:
        ValueError: there is no score.
    """
    scores, labels = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float)
    if not len(scores):
        raise ValueError("calibration needs scores, got none")
    right, wrong = labels.sum(), (1 - labels).sum()
    target = labels * (right + 1) / (right + 2) + (1 - labels) / (wrong + 2)
    return _fitted(scores, target, np.full(len(scores), 1 / len(scores)))


def _fitted(scores: np.ndarray, target: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """The scale above 0 and the offset that make the weighted likelihood of the targets greatest."""
    centre, spread = scores.mean(), float(scores.std())
    spread = spread if spread > 1e-8 else 1.0  # scores that are all the same say nothing of a scale
    x = (scores - centre) / spread

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        z = parameters[0] * x + parameters[1]
        value = float(weight @ (np.logaddexp(0, z) - target * z))
        error = weight * (1 / (1 + np.exp(-z)) - target)
        return value, np.array([error @ x, error.sum()])

    fitted = minimize(loss, np.array([1.0, 0.0]), jac=True, bounds=[(1e-3, None), (None, None)], method="L-BFGS-B")
    scale = float(fitted.x[0]) / spread
    return scale, float(fitted.x[1]) - scale * float(centre)

"""Logistic regression with few weights, fitted exactly. Pure: NumPy and SciPy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]


def logistic(features_ND: Floats, target_N: Floats, weight_N: Floats | None = None, *, ridge: float = 1.0) -> Floats:
    """Weights `[D]` of a logistic regression, which minimise log loss + ½ · ridge · |weights|².

    The penalty keeps weights finite where the features separate the targets. A constant is a feature that is 1.

    Args:
        features_ND: `[N, D]`.
        target_N: `[N]`, in [0, 1]; a target between them is the share of ones.
        weight_N: `[N]`, of each row; None: 1.
        ridge: the penalty, above 0; it means the same for features of one size.
    """
    weight_N = np.ones(len(target_N)) if weight_N is None else weight_N

    def odds(weights: Floats) -> Floats:
        return np.clip(features_ND @ weights, -700, 700)

    def loss(weights: Floats) -> float:
        z = odds(weights)
        return float(weight_N @ (np.logaddexp(0, z) - target_N * z) + ridge * weights @ weights / 2)

    def gradient(weights: Floats) -> Floats:
        return ridge * weights + features_ND.T @ (weight_N * (1 / (1 + np.exp(-odds(weights))) - target_N))

    def curvature(weights: Floats) -> Floats:
        share = 1 / (1 + np.exp(-odds(weights)))
        return ridge * np.eye(len(weights)) + features_ND.T @ (features_ND * (weight_N * share * (1 - share))[:, None])

    start = np.zeros(features_ND.shape[1])
    return minimize(loss, start, jac=gradient, hess=curvature, method="trust-exact", options={"gtol": 1e-6}).x

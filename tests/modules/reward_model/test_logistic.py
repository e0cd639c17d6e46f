from __future__ import annotations

import numpy as np
import pytest

from modules.reward_model.logistic import logistic


def test_the_fit_is_the_least_of_log_loss_and_penalty() -> None:
    # One feature, +1 where the target is 1 and -1 where it is 0: the weight w solves 2 / (1 + exp(w)) = w.
    assert logistic(np.array([[1.0], [-1.0]]), np.array([1.0, 0.0])) == pytest.approx([0.6748], abs=1e-4)
    # A constant alone, three of four: c solves 4 / (1 + exp(-c)) - 3 + c = 0.
    assert logistic(np.ones((4, 1)), np.array([1.0, 1.0, 1.0, 0.0])) == pytest.approx([0.5052], abs=1e-4)


def test_a_share_counts_as_so_many_ones_and_zeros() -> None:
    shares = logistic(np.ones((4, 1)), np.full(4, 0.75))
    assert shares == pytest.approx(logistic(np.ones((4, 1)), np.array([1.0, 1.0, 1.0, 0.0])), abs=1e-6)


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    features, target = np.array([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0]]), np.array([1.0, 0.0, 0.0])
    twice = logistic(np.vstack([features, features[:1]]), np.append(target, 1.0))
    assert logistic(features, target, np.array([2.0, 1.0, 1.0])) == pytest.approx(twice, abs=1e-6)


def test_targets_that_features_separate_have_finite_weights() -> None:
    assert np.isfinite(logistic(np.array([[1e4], [-1e4]]), np.array([1.0, 0.0]))).all()


def test_a_stronger_penalty_has_smaller_weights() -> None:
    features, target = np.array([[1.0], [-1.0]]), np.array([1.0, 0.0])
    assert 0 < logistic(features, target, ridge=10.0)[0] < logistic(features, target)[0]

from __future__ import annotations

import numpy as np
import pytest

from modules.reward_model.calibration import platt, platt_of_labels


def test_scores_that_are_log_odds_up_to_scale_and_shift_get_them_back() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=20_000)
    right = rng.random(20_000) < 1 / (1 + np.exp(-2 * x))  # log-odds 2x, as many right as wrong
    scale, offset = platt(5 * x[right] + 3, 5 * x[~right] + 3)
    assert scale == pytest.approx(2 / 5, rel=0.05)
    assert offset == pytest.approx(-2 * 3 / 5, abs=0.05)


def test_zero_is_even_odds_whichever_side_has_more() -> None:
    scale, offset = platt([2.0, 4.0] * 50, [0.0, 2.0] * 500)
    assert scale * 2.0 + offset == pytest.approx(0.0, abs=0.05)
    assert scale > 0


def test_separable_scores_get_a_finite_scale_and_reversed_ones_keep_their_order() -> None:
    assert 0 < platt([1.0, 1.1], [0.0, 0.1])[0] < 100
    assert platt([0.0, 0.1], [1.0, 1.1])[0] > 0
    assert np.isfinite(platt([1.0, 1.0], [1.0])).all()


def test_scores_that_are_all_the_same_keep_their_scale() -> None:
    assert platt_of_labels([0.3], [1]) == (1.0, pytest.approx(np.log(2) - 0.3, abs=1e-3))  # one right: 2 in 3
    assert platt_of_labels([0.3, 0.3, 0.3], [1, 0, 1])[0] == 1.0
    assert platt([0.3], [0.3])[0] == 1.0


def test_one_side_alone_cannot_be_calibrated() -> None:
    with pytest.raises(ValueError, match="both sides, got 1 and 0"):
        platt([1.0], [])


def test_with_labels_zero_is_even_odds_among_steps_like_these() -> None:
    """A score that tells nothing gets the share of right steps: 3 to 1 of 600 right and 200 wrong ones."""
    scale, offset = platt_of_labels([1.0, -1.0] * 400, [1.0] * 600 + [0.0] * 200)
    assert scale == pytest.approx(1e-3)
    assert offset == pytest.approx(np.log(3), abs=0.02)


def test_labels_between_are_shares_of_right_steps() -> None:
    """Steps of score 1 are right in three of four cases, those of -1 in one: log-odds ± log 3."""
    hard = platt_of_labels([1.0] * 400 + [-1.0] * 400, [1.0] * 300 + [0.0] * 200 + [1.0] * 100 + [0.0] * 200)
    soft = platt_of_labels([1.0] * 400 + [-1.0] * 400, [0.75] * 400 + [0.25] * 400)
    assert soft == pytest.approx((np.log(3), 0.0), abs=0.02)
    assert hard[0] == pytest.approx(np.log(3), abs=0.05)


def test_labels_without_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="got none"):
        platt_of_labels([], [])

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from evaluation.ranking import auc, auc_resampled, interval


def test_auc_counts_the_pairs_in_the_right_order_and_ties_half() -> None:
    assert auc([3, 2, 1, 0], [True, True, False, False]) == 1
    assert auc([0, 1, 2], [True, False, False]) == 0
    assert auc([1, 1], [True, False]) == 0.5
    assert auc([2, 1, 1, 0], [True, False, True, False]) == pytest.approx((2 + 1.5) / 4)
    assert auc([-math.inf, 0, 1], [False, False, True]) == 1
    assert math.isnan(auc([1, 2], [True, True]))


def test_a_weight_is_how_often_a_step_counts() -> None:
    scores, right = [2, 1, 1, 0], [True, False, True, False]
    assert auc(scores, right, [1, 2, 3, 1]) == pytest.approx(auc([2, 1, 1, 1, 1, 1, 0], [1, 0, 0, 1, 1, 1, 0]))


values = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30)


@given(values)
def test_auc_is_the_statistic_of_mann_and_whitney(rows: list[tuple[int, bool]]) -> None:
    right, wrong = ([score for score, label in rows if label == side] for side in (True, False))
    if right and wrong:
        expected = mannwhitneyu(right, wrong).statistic / (len(right) * len(wrong))
        assert auc([score for score, _ in rows], [label for _, label in rows]) == pytest.approx(expected)


def test_questions_are_drawn_whole_and_alike_for_every_scorer() -> None:
    questions = [f"q{n // 4}" for n in range(400)]
    right = np.arange(400) // 2 % 2 == 0
    noise = np.random.default_rng(0).normal(size=400)
    good, again = (auc_resampled(right + noise, right, questions, seed=1) for _ in range(2))
    assert np.array_equal(good, again)
    assert not np.array_equal(good, auc_resampled(right + noise, right, questions, seed=2))
    assert np.allclose(auc_resampled(2 * (right + noise), right, questions, seed=1) - good, 0)
    low, high = interval(good)
    assert low < auc(right + noise, right) < high
    assert 0.03 < high - low < 0.15
    whole = auc_resampled(np.arange(8), [True] * 4 + [False] * 4, ["a"] * 8, seed=0)
    assert np.all(whole == 0), "one question is always drawn whole"

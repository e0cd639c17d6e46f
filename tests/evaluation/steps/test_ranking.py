from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from evaluation.steps.ranking import auc, draw_questions, interval


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


def test_questions_are_drawn_with_all_their_steps_and_alike_for_every_scorer() -> None:
    draws = draw_questions(["a", "b", "a", "c"], seed=1, resamples=200)
    assert draws.shape == (200, 4)
    assert np.array_equal(draws[:, 0], draws[:, 2])
    assert np.all(draws[:, [0, 1, 3]].sum(1) == 3), "three questions are drawn, some of them twice"
    assert np.array_equal(draws, draw_questions(["a", "b", "a", "c"], seed=1, resamples=200))
    assert not np.array_equal(draws, draw_questions(["a", "b", "a", "c"], seed=2, resamples=200))


def test_the_interval_of_resampled_aucs_holds_the_auc() -> None:
    right = np.arange(400) // 2 % 2 == 0
    scores = right + np.random.default_rng(0).normal(size=400)
    draws = draw_questions([f"q{n // 4}" for n in range(400)], seed=1, resamples=500)
    low, high = interval(np.array([auc(scores, right, weights) for weights in draws]))
    assert low < auc(scores, right) < high
    assert 0.03 < high - low < 0.15
    assert interval(np.array([math.nan, 1.0, 1.0])) == (1.0, 1.0)
    assert all(math.isnan(bound) for bound in interval(np.array([math.nan])))

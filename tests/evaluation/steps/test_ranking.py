from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy.stats import mannwhitneyu

from evaluation.steps.ranking import aucs, cross_fitted, draw_questions, interval
from modules.reward_model.logistic import logistic


def auc(scores: ArrayLike, true: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Under one weighting; every step counts once where there is none."""
    weights = np.ones(np.shape(scores)) if weights is None else np.asarray(weights, dtype=float)
    return float(aucs(scores, true, weights[None])[0])


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
    low, high = interval(aucs(scores, right, draws))
    assert low < auc(scores, right) < high
    assert 0.03 < high - low < 0.15
    assert interval(np.array([math.nan, 1.0, 1.0])) == (1.0, 1.0)
    assert all(math.isnan(bound) for bound in interval(np.array([math.nan])))


def random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_two_scores_that_know_different_things_are_better_together() -> None:
    true = random(0).random(2000) < 0.7
    features = true[:, None] + random(1).normal(size=(2000, 2))
    together = cross_fitted(features, true, [f"q{n // 5}" for n in range(2000)])
    alone = [auc(features[:, i], true) for i in range(2)]
    assert auc(together, true) > max(alone) + 0.05


def test_a_question_s_own_steps_do_not_decide_its_scores() -> None:
    questions = [f"q{n // 4}" for n in range(80)]
    true, features = random(0).random(80) < 0.5, random(1).normal(size=(80, 2))
    first = cross_fitted(features, true, questions)
    own = np.array([question == "q3" for question in questions])
    second = cross_fitted(features, np.where(own, ~true, true), questions)
    assert np.array_equal(first[own], second[own])
    assert not np.array_equal(first[~own], second[~own])


def test_noise_gains_nothing_from_being_fitted() -> None:
    true, noise = random(0).random(1000) < 0.5, random(1).normal(size=(1000, 40))
    fitted_on_all = noise @ logistic(noise, true.astype(float))
    assert auc(fitted_on_all, true) > 0.57
    assert auc(cross_fitted(noise, true, [f"q{n}" for n in range(1000)]), true) < 0.55


def test_a_step_without_a_feature_is_last_and_changes_nothing() -> None:
    questions = [f"q{n}" for n in range(40)]
    true, features = random(0).random(40) < 0.5, random(1).normal(size=(40, 1))
    more = cross_fitted(np.vstack([features, [[-np.inf]]]), np.append(true, True), [*questions, "q0"])
    assert more[-1] == -np.inf
    assert np.array_equal(more[:-1], cross_fitted(features, true, questions))


def test_one_question_alone_has_no_fit_and_all_its_steps_tie() -> None:
    assert np.unique(cross_fitted(random(0).normal(size=(5, 2)), np.arange(5) < 2, ["q"] * 5)).tolist() == [0]

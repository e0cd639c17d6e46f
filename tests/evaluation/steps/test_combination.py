from __future__ import annotations

import numpy as np

from evaluation.steps.combination import cross_fitted
from evaluation.steps.ranking import auc
from modules.reward_model.logistic import logistic


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

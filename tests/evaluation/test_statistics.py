from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.statistics import (
    across_seeds,
    average_seeds,
    bootstrap_interval,
    bootstrap_ratio,
    holm,
    paired_bootstrap,
    paired_t_test,
    seeds_interval,
)

NAN = float("nan")


def test_interval_of_a_known_sample_is_close_to_the_normal_one_and_repeatable() -> None:
    values = [1.0] * 40 + [0.0] * 60
    low, high = bootstrap_interval(values, seed=1)
    assert low == pytest.approx(0.4 - 1.96 * math.sqrt(0.24 / 100), abs=0.015)
    assert high == pytest.approx(0.4 + 1.96 * math.sqrt(0.24 / 100), abs=0.015)
    assert bootstrap_interval(values, seed=1) == (low, high)
    assert bootstrap_interval(np.linspace(0, 1, 100), seed=1) != bootstrap_interval(np.linspace(0, 1, 100), seed=2)


def test_interval_is_the_same_in_one_block_and_in_many(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.linspace(0, 1, 37)
    whole = bootstrap_interval(values, seed=3)
    monkeypatch.setattr("evaluation.statistics._PICKS_AT_ONCE", 400)
    assert bootstrap_interval(values, seed=3) == pytest.approx(whole, abs=1e-12)


def test_interval_leaves_out_questions_that_do_not_apply() -> None:
    assert bootstrap_interval([0, NAN, 1, 1, NAN], seed=0) == bootstrap_interval([0, 1, 1], seed=0)


def test_too_few_questions_have_no_interval() -> None:
    for values in ([], [NAN], [1.0], [1.0, NAN]):
        assert all(map(math.isnan, bootstrap_interval(values, seed=0)))


def test_the_interval_of_a_ratio_is_over_questions_and_not_over_steps() -> None:
    assert bootstrap_ratio([1] * 40 + [0] * 60, [1] * 100, seed=0) == bootstrap_interval([1] * 40 + [0] * 60, seed=0)
    # 5 questions of 10 steps each, all or none of them wrong: as uncertain as 5 draws, not as 50
    assert bootstrap_ratio([10, 10, 0, 0, 0], [10] * 5, seed=0) == (0.0, 0.8)
    assert bootstrap_ratio([1, 2, 0], [2, 4, 0], seed=0) == (0.5, 0.5), "a question without steps weighs nothing"
    assert all(map(math.isnan, bootstrap_ratio([1, 0, 0], [1, 0, 0], seed=0)))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(7)
    samples = generator.binomial(1, 0.35, size=(400, 150))
    covered = 0
    for number, sample in enumerate(samples):
        low, high = bootstrap_interval(sample, seed=number, resamples=400)
        covered += low <= 0.35 <= high
    assert 0.92 <= covered / 400 <= 0.975


def test_paired_tests_find_a_real_difference_and_agree() -> None:
    generator = np.random.default_rng(0)
    hard = generator.random(300)
    a = (generator.random(300) < np.clip(hard + 0.1, 0, 1)).astype(float)
    b = (generator.random(300) < np.clip(hard - 0.1, 0, 1)).astype(float)
    bootstrap, student = paired_bootstrap(a, b, seed=0), paired_t_test(a, b)
    assert bootstrap.difference == student.difference == pytest.approx(np.mean(a) - np.mean(b))
    assert bootstrap.p < 0.01
    assert student.p < 0.01
    assert bootstrap.low == pytest.approx(student.low, abs=0.01)
    assert bootstrap.high == pytest.approx(student.high, abs=0.01)


def test_t_test_gives_the_textbook_numbers() -> None:
    # d = 1, 2, 3, 4: mean 2.5, s = 1.29099, t = 2.5 / (s / 2) = 3.87298, 3 degrees of freedom, t_975 = 3.18245
    test = paired_t_test([2, 4, 6, 8], [1, 2, 3, 4])
    assert (test.difference, test.n) == (2.5, 4)
    assert test.p == pytest.approx(0.030466, abs=1e-6)
    assert test.low == pytest.approx(2.5 - 3.182446 * 0.645497, abs=1e-5)
    assert test.high == pytest.approx(2.5 + 3.182446 * 0.645497, abs=1e-5)


def test_equal_arms_do_not_differ() -> None:
    values = [0.0, 1.0, 1.0, 0.5]
    for test in (paired_bootstrap(values, values, seed=0), paired_t_test(values, values)):
        assert (test.difference, test.low, test.high, test.p, test.n) == (0, 0, 0, 1, 4)


def test_an_even_trade_of_questions_has_p_one() -> None:
    assert paired_bootstrap([1, 0, 1, 0], [0, 1, 0, 1], seed=0).p == 1
    assert paired_t_test([1, 0, 1, 0], [0, 1, 0, 1]).p == 1


def test_always_better_by_the_same_is_significant_over_questions() -> None:
    assert paired_bootstrap([1.0] * 9, [0.9] * 9, seed=0, resamples=999).p == pytest.approx(0.001)


def test_differences_without_spread_are_not_tested() -> None:
    # Two seeds that both differ by two of 300 questions; in the second test but for the last bits.
    for test in (paired_t_test([260, 261], [258, 259]), paired_t_test([0.3, 0.7], [0.2, 0.6])):
        assert test.difference == pytest.approx(2 if test.difference > 1 else 0.1)
        assert math.isnan(test.p)
        assert math.isnan(test.low)
        assert math.isnan(test.high)


def test_ties_stay_ties_for_averages_over_three_seeds() -> None:
    a, b = np.array([2, 2, 1, 1, 0, 0, 0]), np.array([0, 3, 2, 3, 2, 2, 3])
    assert paired_bootstrap(a / 3, b / 3, seed=0).p == paired_bootstrap(a / 4, b / 4, seed=0).p


def test_false_alarms_are_as_rare_as_they_should_be() -> None:
    generator = np.random.default_rng(3)
    pairs = generator.binomial(1, 0.5, size=(400, 2, 120)).astype(float)
    bootstrap = sum(paired_bootstrap(a, b, seed=i, resamples=400).p < 0.05 for i, (a, b) in enumerate(pairs))
    student = sum(paired_t_test(a, b).p < 0.05 for a, b in pairs)
    assert 0.025 <= bootstrap / 400 <= 0.08
    assert 0.025 <= student / 400 <= 0.08


def test_a_pair_with_one_side_missing_is_left_out() -> None:
    a, b = [1.0, NAN, 0.0, 1.0], [0.0, 1.0, NAN, 0.5]
    assert paired_bootstrap(a, b, seed=0) == paired_bootstrap([1.0, 1.0], [0.0, 0.5], seed=0)
    assert paired_t_test(a, b).n == 2
    assert paired_t_test(a, b).difference == 0.75


def test_one_question_proves_nothing() -> None:
    for test in (paired_bootstrap([1.0], [0.0], seed=0), paired_t_test([1.0], [0.0])):
        assert (test.difference, test.n) == (1.0, 1)
        assert math.isnan(test.p)


def test_pairs_must_match() -> None:
    for run in (lambda: paired_bootstrap([1, 0], [1], seed=0), lambda: paired_t_test([1, 0], [1])):
        with pytest.raises(ValueError, match="same questions"):
            run()


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1, 1]
    assert holm([]) == []


def test_holm_ignores_what_is_not_a_test() -> None:
    adjusted = holm([NAN, 0.02, 0.03])
    assert math.isnan(adjusted[0])
    assert adjusted[1:] == pytest.approx([0.04, 0.04])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_lies_between_no_correction_and_bonferroni_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for p, q in zip(p_values, adjusted, strict=True):
        assert p <= q <= min(1, p * len(p_values)) + 1e-12
    ranked = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert ranked == sorted(ranked)


def test_seeds_are_averaged_per_question_over_those_that_have_it() -> None:
    values = [[1.0, 0.0, NAN, NAN], [0.0, 0.0, 1.0, NAN]]
    np.testing.assert_equal(average_seeds(values), [0.5, 0.0, 1.0, NAN])


def test_the_spread_across_seeds_is_of_those_that_have_a_value() -> None:
    assert across_seeds([0.5, 1, NAN, 0]) == (0.5, 0.5)
    mean, sd = across_seeds([0.5])
    assert mean == 0.5
    assert math.isnan(sd)
    assert math.isnan(across_seeds([NAN])[0])


def test_the_interval_over_seeds_is_student_s() -> None:
    # mean 2, standard error 1 / sqrt(3); the 97.5 % quantile of t with two degrees of freedom is 4.3027
    assert seeds_interval([1, 2, 3]) == pytest.approx((2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), abs=1e-4)
    for too_little in ([1], [1, NAN, 1]):
        assert all(math.isnan(bound) for bound in seeds_interval(too_little))

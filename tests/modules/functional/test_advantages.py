"""Advantages against numbers worked out by hand; what is unknown or says nothing moves nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.functional.advantages import (
    batch_normalize,
    dual_granularity,
    group_normalize,
    grpo,
    leave_one_out,
    return_to_go,
    scaled_rewards,
)

NAN = float("nan")
REWARDS = torch.tensor([[0.9, 0.5], [0.1, 0.0]])
MASK = torch.tensor([[True, True], [True, False]])
OUTCOME = torch.tensor([1.2, 0.2])
LENGTHS = torch.tensor([[2.0, 4.0], [3.0, 0.0]])


def test_outcomes_are_normalised_by_the_sample_deviation() -> None:
    assert group_normalize(OUTCOME, 2).tolist() == pytest.approx([0.707007, -0.707007], abs=1e-6)


def test_eq_7_over_steps() -> None:
    process = dual_granularity(REWARDS, MASK, torch.zeros(2), group_size=2, beta=1.0)
    assert process.tolist() == [pytest.approx([1.224745, 0.0], abs=1e-6), pytest.approx([-1.224745, 0.0], abs=1e-6)]


def test_eq_7_over_tokens_as_the_released_code() -> None:
    process = dual_granularity(
        REWARDS, MASK, torch.zeros(2), group_size=2, beta=1.0, statistics="token", step_lengths_BS=LENGTHS
    )
    assert process[0].tolist() == pytest.approx([1.507557, 0.150756], abs=1e-6)
    assert process[1].tolist() == pytest.approx([-1.206045, 0.0], abs=1e-6)


def test_eq_7_apart_for_each_place_in_the_episode() -> None:
    rewards = torch.tensor([[0.9, 0.5], [0.1, 0.5], [0.5, 1.1]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    process = dual_granularity(rewards, mask, torch.zeros(3), group_size=3, beta=1.0, statistics="step_index")
    assert process[:, 0].tolist() == pytest.approx([1.224745, -1.224745, 0.0], abs=1e-6)
    assert process[:, 1].tolist() == [0, 0, 0], "the second steps that exist are alike"


def test_eq_8_adds_what_steps_and_outcome_say() -> None:
    step = dual_granularity(REWARDS, MASK, OUTCOME, group_size=2, beta=0.3)
    token = dual_granularity(
        REWARDS, MASK, OUTCOME, group_size=2, beta=0.3, statistics="token", step_lengths_BS=LENGTHS
    )
    assert step[MASK].tolist() == pytest.approx([1.074430, 0.707007, -1.074430], abs=1e-6)
    assert token[MASK].tolist() == pytest.approx([1.159274, 0.752233, -1.068820], abs=1e-6)
    assert step[~MASK].tolist() == [0]


def test_groups_know_nothing_of_each_other() -> None:
    rewards, mask = torch.cat([REWARDS, 100 * REWARDS.flip(0)]), torch.cat([MASK, MASK.flip(0)])
    both = dual_granularity(rewards, mask, torch.cat([OUTCOME, 7 + OUTCOME]), group_size=2, beta=0.3)
    alone = dual_granularity(REWARDS, MASK, OUTCOME, group_size=2, beta=0.3)
    assert torch.equal(both[:2], alone)


@pytest.mark.parametrize("statistics", ["step", "token", "step_index"])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.7])
def test_no_spread_prefers_nothing(statistics, value: float) -> None:
    rewards, outcome = torch.full((4, 3), value), torch.full((4,), value)
    rewards[0, 0] += 1e-7
    advantages = dual_granularity(
        rewards,
        torch.ones(4, 3, dtype=torch.bool),
        outcome,
        group_size=4,
        beta=0.3,
        statistics=statistics,
        step_lengths_BS=torch.ones(4, 3),
    )
    assert advantages.tolist() == torch.zeros(4, 3).tolist()


def test_an_unscored_step_has_only_its_episode_s_outcome() -> None:
    rewards = torch.tensor([[0.9, NAN], [0.1, 0.5]])
    advantages = dual_granularity(rewards, torch.ones(2, 2).bool(), OUTCOME, group_size=2, beta=0.3)
    known = dual_granularity(
        torch.tensor([[0.9, 0.1, 0.5]] * 2), torch.tensor([[True] * 3, [False] * 3]), OUTCOME, group_size=2, beta=0.3
    )
    assert advantages[0, 1] == pytest.approx(0.707007, abs=1e-6)
    assert advantages[0, 0] == pytest.approx(float(known[0, 0])), "statistics are over the other three"


def test_an_unscored_episode_trains_nothing_and_counts_for_nothing() -> None:
    rewards = torch.cat([REWARDS, torch.tensor([[100.0, -100.0]])])
    mask, outcome = torch.cat([MASK, torch.ones(1, 2).bool()]), torch.tensor([1.2, 0.2, NAN])
    advantages = dual_granularity(rewards, mask, outcome, group_size=3, beta=0.3)
    alone = dual_granularity(REWARDS, MASK, OUTCOME, group_size=2, beta=0.3)
    assert advantages[2].tolist() == [0, 0]
    assert torch.allclose(advantages[:2], alone)


def test_one_known_value_prefers_nothing() -> None:
    assert group_normalize(torch.tensor([NAN, 5.0, NAN]), 3).tolist() == [0, 0, 0]
    assert group_normalize(torch.tensor([NAN, NAN]), 2).tolist() == [0, 0]
    one = dual_granularity(
        torch.tensor([[0.4], [NAN]]), torch.ones(2, 1).bool(), torch.zeros(2), group_size=2, beta=1.0
    )
    assert one.tolist() == [[0], [0]]


def test_token_statistics_need_lengths() -> None:
    with pytest.raises(ValueError, match="step_lengths_BS"):
        dual_granularity(REWARDS, MASK, OUTCOME, group_size=2, statistics="token")


@given(
    values=st.lists(st.floats(-5, 5, width=32), min_size=6, max_size=6),
    scale=st.floats(0.5, 4),
    shift=st.floats(-3, 3),
)
def test_only_the_order_and_the_relative_distances_of_rewards_count(
    values: list[float], scale: float, shift: float
) -> None:
    rewards = torch.tensor(values, dtype=torch.float64).reshape(3, 2)
    if float(rewards.max() - rewards.min()) < 1e-3:
        return
    mask, flat = torch.ones(3, 2).bool(), torch.zeros(3, dtype=torch.float64)
    before, after = (
        dual_granularity(one, mask, flat, group_size=3, beta=1.0) for one in (rewards, scale * rewards + shift)
    )
    assert torch.allclose(before, after, atol=1e-6)
    assert before.mean() == pytest.approx(0, abs=1e-9)
    assert (before**2).mean() == pytest.approx(1)


def test_grpo_by_hand() -> None:
    outcome = torch.tensor([1.0, 0.0, 0.0, 3.0])  # mean 1, squares 0 1 1 4, sample variance 2
    assert grpo(outcome, group_size=4).tolist() == pytest.approx([0, -0.7071063, -0.7071063, 1.4142126], abs=1e-6)
    assert grpo(outcome, group_size=4, scale=False).tolist() == [0, -1, -1, 2]
    assert grpo(outcome[:2], group_size=2, eps=1.0).tolist() == pytest.approx([0.2928932, -0.2928932])


def test_one_left_out_is_compared_with_the_mean_of_the_others() -> None:
    outcome = torch.tensor([1.0, 0.0, 0.0, 3.0])
    assert leave_one_out(outcome, group_size=4).tolist() == pytest.approx([0, -4 / 3, -4 / 3, 8 / 3])
    assert leave_one_out(outcome, group_size=2).tolist() == [1, -1, -3, 3]


def test_what_is_unknown_is_no_other() -> None:
    outcome = torch.tensor([1.0, NAN, 0.0, 5.0])
    assert grpo(outcome, group_size=4, scale=False).tolist() == [-1, 0, -2, 3]
    assert leave_one_out(outcome, group_size=4).tolist() == [-1.5, 0, -3, 4.5]
    assert grpo(outcome, group_size=4).tolist() == pytest.approx([-0.3779643, 0, -0.7559287, 1.1338930], abs=1e-6)


@pytest.mark.parametrize("compare", [grpo, lambda *a, **k: grpo(*a, scale=False, **k), leave_one_out])
@pytest.mark.parametrize("outcome", [[0.1] * 3, [0.7, 0.7 + 5e-7, 0.7], [NAN, 2.0, NAN], [NAN] * 3, [float("inf")] * 3])
def test_outcomes_without_spread_say_nothing(compare, outcome: list[float]) -> None:
    assert compare(torch.tensor(outcome), group_size=3).tolist() == [0, 0, 0]
    assert compare(torch.tensor(outcome), group_size=1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("compare", [grpo, leave_one_out])
def test_whole_numbers_are_outcomes_too(compare) -> None:
    outcome = torch.tensor([1, 0, 0, 5])
    assert torch.equal(compare(outcome, group_size=2), compare(outcome.float(), group_size=2))


def test_whole_numbers_are_rewards_of_steps_too() -> None:
    rewards_BS, mask_BS = torch.tensor([[1, 1], [1, 0]]), torch.tensor([[True, True], [True, False]])
    expected = return_to_go(rewards_BS.float(), mask_BS, group_size=2)
    assert torch.equal(return_to_go(rewards_BS, mask_BS, group_size=2), expected)
    assert expected.tolist() == [[1, 1], [-1, 0]]


def test_a_step_is_followed_by_what_its_episode_gets_from_it_on() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0], [1.0, 1.0, 9.0], [5.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    # From step 1 on the episodes get 7 2 5, from step 2 on 6 1 0, from step 3 on 4 0 0.
    advantages = return_to_go(rewards, mask, group_size=3)
    expected = [[3.5, 5.5, 4.0], [-4.0, -2.0, 0.0], [0.5, 0.0, 0.0]]
    assert advantages.tolist() == [pytest.approx(row) for row in expected]
    twice = return_to_go(torch.cat([rewards, 10 * rewards]), torch.cat([mask, mask]), group_size=3)
    assert twice[3:].tolist() == [pytest.approx([10 * x for x in row]) for row in expected]


def test_an_episode_with_an_unknown_reward_is_left_out_of_every_step() -> None:
    rewards = torch.tensor([[1.0, 2.0], [3.0, NAN], [NAN, 0.0], [2.0, NAN]])
    mask = torch.tensor([[True, True], [True, True], [True, False], [True, False]])
    assert return_to_go(rewards, mask, group_size=4).tolist() == [[1, 2], [0, 0], [0, 0], [-1, 0]]
    assert return_to_go(rewards, mask, group_size=1).tolist() == [[0, 0]] * 4
    assert return_to_go(rewards[1:3], mask[1:3], group_size=2).tolist() == [[0, 0]] * 2


def test_returns_that_are_equal_but_for_rounding_say_nothing() -> None:
    rewards = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.2, 0.2]])
    assert return_to_go(rewards, torch.ones(3, 3).bool(), group_size=3)[:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_without_steps_or_episodes_there_is_nothing_to_compare(shape: tuple[int, int]) -> None:
    rewards, mask, outcome = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool), torch.zeros(shape[0])
    assert return_to_go(rewards, mask, group_size=2).shape == shape
    assert return_to_go(torch.zeros(shape), torch.zeros(shape), group_size=2).shape == shape
    assert dual_granularity(rewards, mask, outcome, group_size=2).shape == shape
    whole = dual_granularity(rewards.long(), mask, outcome, group_size=2, statistics="step_index")
    assert (whole.shape, whole.dtype) == (shape, torch.float32)


def test_returns_to_go_of_two_questions_stay_apart() -> None:
    """Three steps of two episodes each: returns 6 5 3 and 3 2 1, then 1 1 1 and 4 2 1."""
    rewards = torch.tensor([[1.0, 2, 3], [1, 1, 1], [0, 0, 1], [2, 1, 1]])
    expected = [[3.0, 3.0, 2.0], [-3.0, -3.0, -2.0], [-3.0, -1.0, 0.0], [3.0, 1.0, 0.0]]
    assert return_to_go(rewards, torch.ones(4, 3), group_size=2).tolist() == expected


def test_a_batch_is_normalised_over_all_ranks() -> None:
    values, known = torch.tensor([[1.0, 2.0], [NAN, 5.0], [4.0, 7.0]]), torch.tensor([[1, 1], [0, 1], [1, 0]]).bool()
    whole = batch_normalize(values, known, sum_over_ranks=lambda sums: sums)  # 1 2 5 4: mean 3, variance 2.5
    assert whole.tolist() == [pytest.approx([-1.2649111, -0.6324555]), pytest.approx([0, 1.2649111]),
                              pytest.approx([0.6324555, 0])]  # fmt: skip
    parts = (slice(0, 1), slice(1, 3))
    seen: list[torch.Tensor] = []
    for rows in parts:
        batch_normalize(values[rows], known[rows], sum_over_ranks=lambda sums: (seen.append(sums), sums)[1])
    assert len(seen) == 2, "one reduction a rank"
    halves = [batch_normalize(values[rows], known[rows], sum_over_ranks=lambda _: sum(seen)) for rows in parts]  # pyright: ignore
    assert torch.allclose(torch.cat(halves), whole)


def test_mean_and_deviation_may_be_those_of_some_values_alone() -> None:
    values, known = torch.tensor([1.0, 3.0, 1.0, 9.0]), torch.tensor([True, True, True, False])
    some = torch.tensor([True, True, False, False])
    scaled = batch_normalize(values, known, sum_over_ranks=lambda sums: sums, counted=some)  # mean 2, deviation 1
    assert scaled.tolist() == pytest.approx([-1, 1, -1, 0])


@pytest.mark.parametrize(("value", "known"), [(0.1, True), (-3e4, True), (NAN, False)])
def test_a_batch_without_spread_says_nothing(value: float, known: bool) -> None:
    flat = torch.full((3, 2), value)
    assert not batch_normalize(flat, torch.full((3, 2), known), sum_over_ranks=lambda sums: sums).any()


TWO_REWARDS = torch.tensor([[1.0, 0.0], [0.0, 0.2], [0.0, 0.0]])


def test_each_reward_is_normalised_before_they_are_added_up() -> None:
    scaled = scaled_rewards(TWO_REWARDS, torch.ones(2), group_size=3)
    assert scaled.tolist() == pytest.approx([0.577892, 0.576693, -1.154585], abs=2e-6)
    wide = torch.cat([TWO_REWARDS, torch.tensor([[7.0], [NAN], [0.0]])], dim=1)
    logged_only = torch.tensor([1.0, 1.0, 0.0])
    assert torch.equal(scaled_rewards(wide, logged_only, group_size=3), scaled)


def test_within_groups_alone_a_lesser_reward_never_weighs_more_than_its_weight() -> None:
    """No answer is right: over the batch the format of weight 0.2 is as large as an answer would be."""
    wrong, weights = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 0.2])
    apart = scaled_rewards(wrong, weights, group_size=2, over_batch=False)
    assert apart.tolist() == pytest.approx([0.141401, -0.141401, 0, 0], abs=1e-6)
    each = scaled_rewards(wrong, weights, group_size=2)
    assert each.tolist() == pytest.approx([1.223684, -1.223684, 0, 0], abs=1e-5)
    summed = group_normalize(wrong @ weights, 2)
    assert summed.tolist() == pytest.approx([0.706607, -0.706607, 0, 0], abs=1e-5)


def test_a_reward_or_a_group_without_spread_adds_nothing_and_an_unknown_reward_leaves_its_episode_out() -> None:
    flat = torch.cat([TWO_REWARDS, torch.full((3, 2), 0.3)])
    scaled = scaled_rewards(flat, torch.ones(2), group_size=3)
    assert scaled[3:].tolist() == [0, 0, 0]
    assert scaled[:3].tolist() == pytest.approx([0.913674, 0.911777, -1.825453], abs=2e-6), "the batch has six values"
    alone = scaled_rewards(TWO_REWARDS * torch.tensor([1.0, 0.0]), torch.ones(2), group_size=3)
    assert alone.tolist() == pytest.approx([1.154582, -0.577291, -0.577291], abs=1e-5)
    unknown = torch.cat([TWO_REWARDS, torch.tensor([[1.0, NAN]])])
    known = scaled_rewards(unknown, torch.ones(2), group_size=4)
    assert known.tolist() == pytest.approx([0.577892, 0.576693, -1.154585, 0], abs=2e-6)

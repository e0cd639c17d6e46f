"""Every credit function, from one `CreditInputs`, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
import torch

from modules.functional.credit import (
    dual_granularity_credit,
    gae_credit,
    grpo_credit,
    potential_difference_credit,
    reinforce_pp_credit,
    return_to_go_credit,
    rloo_credit,
    state_gain_credit,
    tree_gae_credit,
)
from modules.functional.credit_inputs import MissingInput
from modules.functional.process_advantages import Statistics
from tests.credits import credit_inputs_of

INPUTS = credit_inputs_of(
    step_rewards_BS=torch.tensor([[0.9, 0.5], [0.1, 0.0]]),
    step_mask_BS=torch.tensor([[True, True], [True, False]]),
    outcome_B=torch.tensor([1.2, 0.2]),
    group_size=2,
    step_lengths_BS=torch.tensor([[2, 4], [3, 0]]),
)
OUTCOME = 0.5 / (math.sqrt(0.5) + 1e-4)  # of the better episode; the sample std of 1.2 and 0.2 is sqrt(0.5)


def test_steps_count_once_or_by_their_tokens() -> None:
    std = math.sqrt((0.4**2 + 0.0 + 0.4**2) / 3)
    assert dual_granularity_credit(INPUTS, beta=0.3).tolist()[0] == pytest.approx([OUTCOME + 0.3 * 0.4 / std, OUTCOME])
    assert dual_granularity_credit(INPUTS, beta=0.3).tolist()[1] == pytest.approx([-OUTCOME - 0.3 * 0.4 / std, 0.0])
    by_tokens = dual_granularity_credit(INPUTS, beta=0.3, statistics="token").tolist()
    assert by_tokens[0] == pytest.approx([1.159274, 0.752233], abs=1e-6), "the released code's"


def test_beta_0_is_the_outcome_alone() -> None:
    assert dual_granularity_credit(INPUTS, beta=0.0).tolist() == [
        pytest.approx([OUTCOME, OUTCOME]),
        pytest.approx([-OUTCOME, 0.0]),
    ]


# Rewards of two questions: 0.9 + 0.5 + 1.2 = 2.6 and 0.1 + 0.2 = 0.3; unknown and 5.
TWO = credit_inputs_of(
    step_rewards_BS=torch.tensor([[0.9, 0.5], [0.1, 0.0], [1.0, 1.0], [2.0, 0.0]]),
    step_mask_BS=torch.tensor([[True, True], [True, False], [True, True], [True, False]]),
    outcome_B=torch.tensor([1.2, 0.2, float("nan"), 3.0]),
    group_size=2,
    step_lengths_BS=torch.tensor([[2, 3], [3, 0], [1, 1], [2, 0]]),
    trained_BT=torch.arange(5) < torch.tensor([[5], [3], [2], [2]]),
)
NOTHING: list[list[float]] = [[0, 0], [0, 0]]


def approx(rows: list[list[float]]) -> list[object]:
    return [pytest.approx(row, abs=1e-5) for row in rows]


def test_grpo_and_rloo_compare_the_sum_of_an_episode_s_rewards() -> None:
    assert rloo_credit(TWO).tolist() == approx([[2.3, 2.3], [-2.3, 0], *NOTHING])
    assert grpo_credit(TWO, scale=False).tolist() == approx([[1.15, 1.15], [-1.15, 0], *NOTHING])
    assert grpo_credit(TWO).tolist() == approx([[0.70711, 0.70711], [-0.70711, 0], *NOTHING])
    assert grpo_credit(TWO, eps=1.0).tolist()[0] == pytest.approx([1.15 / (2.3 * math.sqrt(0.5) + 1)] * 2)


def test_return_to_go_has_the_outcome_on_the_last_step() -> None:
    # 2.6 and 1.7 from the first and the second step on; 0.3 and nothing.
    assert return_to_go_credit(TWO).tolist() == approx([[2.3, 1.7], [-2.3, 0], *NOTHING])


def test_reinforce_pp_normalises_over_all_tokens() -> None:
    # By token 2.6 2.6 1.7 1.7 1.7, 0.3 0.3 0.3, and 5 5 of the episode whose group has no other.
    returns = [2.6, 2.6, 1.7, 1.7, 1.7, 0.3, 0.3, 0.3, 5.0, 5.0]
    mean = sum(returns) / 10
    std = math.sqrt(sum((x - mean) ** 2 for x in returns) / 10)
    high, low, gone, best = ((x - mean) / std for x in (2.6, 1.7, 0.3, 5.0))
    expected = [[high, high, low, low, low], [gone, gone, gone, 0, 0], [0] * 5, [best, best, 0, 0, 0]]
    assert reinforce_pp_credit(TWO).tolist() == approx(expected)


def test_reinforce_pp_leaves_a_frozen_agent_s_tokens_out() -> None:
    """The third token is another agent's; what it earns goes to the token before it."""
    one = credit_inputs_of(
        step_rewards_BS=torch.tensor([[0.0, 4.0], [0.0, 0.0]]),
        step_mask_BS=torch.tensor([[True, True], [True, False]]),
        outcome_B=torch.tensor([1.0, 2.0]),
        group_size=2,
        step_lengths_BS=torch.tensor([[2, 1], [1, 0]]),
        trained_BT=torch.tensor([[True, True, False], [True, False, False]]),
    )  # returns 5 5 and 2: mean 4, deviation the root of 2
    half = math.sqrt(0.5)
    assert reinforce_pp_credit(one).tolist() == approx([[half, half, 0], [-2 * half, 0, 0]])


def test_reinforce_pp_takes_the_divergence_as_a_reward_of_every_token() -> None:
    one = credit_inputs_of(
        step_rewards_BS=torch.zeros(2, 1),
        step_mask_BS=torch.ones(2, 1, dtype=torch.bool),
        outcome_B=torch.tensor([1.0, 0.0]),
        group_size=2,
        step_lengths_BS=torch.tensor([[3], [1]]),
        trained_BT=torch.tensor([[True] * 3, [True, False, False]]),
        old_logps_BT=torch.tensor([[-1.0, -2.0, -1.0], [-1.0, 0.0, 0.0]]),
        reference_logps_BT=torch.tensor([[-2.0, -2.5, -3.0], [-0.5, float("nan"), 7.0]]),
    )
    # Gaps 1 0.5 2 and -0.5: returns 1 - 0.35, 1 - 0.25, 1 - 0.2 and 0.05.
    returns = [0.65, 0.75, 0.8, 0.05]
    mean = sum(returns) / 4
    std = math.sqrt(sum((x - mean) ** 2 for x in returns) / 4)
    first, second, third, other = ((x - mean) / std for x in returns)
    assert reinforce_pp_credit(one, kl_weight=0.1).tolist() == approx([[first, second, third], [other, 0, 0]])
    with pytest.raises(MissingInput, match="reference"):
        reinforce_pp_credit(replace(one, reference_logps_BT=None), kl_weight=0.1)


@pytest.mark.parametrize(
    "credit", [dual_granularity_credit, grpo_credit, rloo_credit, return_to_go_credit, reinforce_pp_credit]
)
@pytest.mark.parametrize("unknown", ["outcome", "step", "all"])
def test_no_credit_is_ever_unknown(credit, unknown: str) -> None:
    nan = float("nan")
    outcome, rewards = TWO.outcome_B.clone(), TWO.step_rewards_BS.clone()
    outcome[{"outcome": [0], "step": [], "all": [0, 1, 2, 3]}[unknown]] = nan
    rewards[{"outcome": [], "step": [0], "all": [0, 1, 2, 3]}[unknown]] = nan
    for group_size in (1, 2, 4):
        inputs = replace(TWO, outcome_B=outcome, step_rewards_BS=rewards, group_size=group_size)
        advantages = credit(inputs)
        assert advantages.isfinite().all()
        assert unknown != "all" or not advantages.any()
        assert group_size > 1 or credit in (reinforce_pp_credit, dual_granularity_credit) or not advantages.any()


@pytest.mark.parametrize(
    "credit", [dual_granularity_credit, grpo_credit, rloo_credit, return_to_go_credit, reinforce_pp_credit]
)
def test_rewards_that_are_all_equal_give_no_credit(credit) -> None:
    """Of reward-to-go where all take as many steps: who has ended gets 0 from then on, and that is a difference."""
    lengths = TWO.step_lengths_BS if credit is not return_to_go_credit else torch.full((4, 2), 2)
    mask = TWO.step_mask_BS if credit is not return_to_go_credit else torch.ones(4, 2, dtype=torch.bool)
    zeros, outcome = torch.zeros(4, 2), torch.full((4,), 0.7)
    flat = replace(TWO, step_rewards_BS=zeros, outcome_B=outcome, step_mask_BS=mask, step_lengths_BS=lengths)
    assert not credit(flat).any()


# Two steps of 2 and 1 tokens, outcome 1; steps of 1, 1 and 1 tokens, the second a frozen agent's; an unknown outcome.
VALUED = credit_inputs_of(
    step_rewards_BS=torch.tensor([[0.2, 0.4, 0.0], [0.1, 0.3, 0.0], [0.5, 0.0, 0.0]]),
    step_mask_BS=torch.tensor([[True, True, False], [True, True, True], [True, False, False]]),
    outcome_B=torch.tensor([1.0, 2.0, float("nan")]),
    group_size=1,
    step_lengths_BS=torch.tensor([[2, 1, 0], [1, 1, 1], [2, 0, 0]]),
    trained_BT=torch.tensor([[True, True, True], [True, False, True], [True, True, False]]),
    values_BT=torch.tensor([[0.5, 0.6, 0.8], [0.5, float("nan"), 0.7], [0.1, 0.1, 0.0]]),
    old_logps_BT=torch.tensor([[-1.0, -2.0, -1.0], [-1.0, -1.0, -3.0], [-1.0, -1.0, 0.0]]),
    reference_logps_BT=torch.tensor([[-1.0, -1.0, -2.0], [-2.0, float("nan"), -3.0], [-1.0, -1.0, 0.0]]),
)


def test_gae_has_rewards_of_steps_and_outcome_where_they_were_earned() -> None:
    # Rewards 0, .2, 1.4 and .4, -, 2; what an unknown outcome belongs to trains nothing.
    expected = [[1.6 - 0.5, 1.6 - 0.6, 1.4 - 0.8], [2.4 - 0.5, 0, 2.0 - 0.7], [0, 0, 0]]
    assert gae_credit(VALUED).tolist() == approx(expected)
    last = 1.4 - 0.8
    second = 0.2 + 0.9 * 0.8 - 0.6 + 0.45 * last
    assert gae_credit(VALUED, gamma=0.9, lam=0.5)[0, 1:].tolist() == pytest.approx([second, last])


def test_gae_takes_the_divergence_as_a_reward_of_every_policy_token() -> None:
    # Log-ratios to the reference 0, -1, 1 and 1, -, 0.
    rewards = [[0.0, 0.2 + 0.1, 1.4 - 0.1], [0.4 - 0.1, 0, 2.0]]
    expected = [
        [sum(rewards[0]) - 0.5, sum(rewards[0][1:]) - 0.6, rewards[0][2] - 0.8],
        [sum(rewards[1]) - 0.5, 0, 2.0 - 0.7],
        [0, 0, 0],
    ]
    assert gae_credit(VALUED, kl_weight=0.1).tolist() == approx(expected)


def test_gae_trains_nothing_where_a_step_s_reward_is_unknown() -> None:
    unknown = replace(VALUED, step_rewards_BS=torch.tensor([[0.2, float("nan"), 0.0]] + [[0.0] * 3] * 2))
    assert gae_credit(unknown)[0].tolist() == [0, 0, 0]


def test_gae_says_what_it_lacks() -> None:
    with pytest.raises(MissingInput, match=r"train with modules\.ppo:PPO"):
        gae_credit(replace(VALUED, values_BT=None))
    with pytest.raises(MissingInput, match="log-probs of a reference"):
        gae_credit(replace(VALUED, reference_logps_BT=None), kl_weight=0.1)


@pytest.mark.parametrize(("B", "S", "T"), [(2, 0, 0), (2, 0, 3), (0, 3, 3), (0, 0, 0)])
def test_without_steps_or_episodes_there_is_no_credit_to_give(B: int, S: int, T: int) -> None:
    names = tuple(("",) * S for _ in range(B))
    empty = credit_inputs_of(
        step_rewards_BS=torch.zeros(B, S),
        step_mask_BS=torch.zeros(B, S, dtype=torch.bool),
        outcome_B=torch.zeros(B),
        group_size=2,
        step_lengths_BS=torch.zeros(B, S, dtype=torch.long),
        step_kinds_BS=names,
        step_valid_BS=torch.zeros(B, S, dtype=torch.bool),
        step_turns_BS=names,
        trained_BT=torch.zeros(B, T, dtype=torch.bool),
        values_BT=torch.zeros(B, T),
    )
    for credit in (grpo_credit, rloo_credit, return_to_go_credit):
        assert credit(empty).shape == (B, S)
    for statistics in get_args(Statistics):
        assert dual_granularity_credit(empty, statistics=statistics).shape == (B, S)
    for credit in (reinforce_pp_credit, gae_credit, tree_gae_credit):
        assert credit(empty).tolist() == [[0.0] * T] * B


# Two episodes of a query and an answer that begin alike.
KINDS = credit_inputs_of(
    step_rewards_BS=torch.tensor([[0.9, 0.7], [0.1, 0.3]]),
    step_mask_BS=torch.ones(2, 2, dtype=torch.bool),
    outcome_B=torch.tensor([1.2, 0.2]),
    group_size=2,
    step_kinds_BS=(("query", "answer"), ("query", "answer")),
    step_states_BS=(("start", "a"), ("start", "b")),
)


def test_a_process_advantage_is_added_to_the_outcome_s() -> None:
    kinds = partial(dual_granularity_credit, statistics="kind", scale=False)
    for credit, process in (
        (potential_difference_credit, [0.4, -0.2]),
        (state_gain_credit, [0.8, 0.0]),
        (kinds, [0.4, 0.2]),
    ):
        given = credit(KINDS, beta=0.5).tolist()
        assert given[0] == pytest.approx([OUTCOME + 0.5 * value for value in process]), credit
        assert given[1] == pytest.approx([-OUTCOME - 0.5 * value for value in process]), credit


def test_a_step_out_of_format_has_no_shelter_among_its_kind() -> None:
    one = replace(
        KINDS,
        step_rewards_BS=torch.tensor([[0.9, 0.7], [0.1, 0.0]]),
        step_kinds_BS=(("query", "answer"), ("query", "invalid")),
        step_valid_BS=torch.tensor([[True, True], [True, False]]),
        step_states_BS=(("start", "a"), ("start", "a")),
    )  # of all four the mean is .425; queries are +.4 and -.4, the answer is alone of its kind
    kinds = partial(dual_granularity_credit, statistics="kind", scale=False)
    for credit, process in ((kinds, -0.425), (potential_difference_credit, -0.425 + 0.4), (state_gain_credit, -0.425)):
        assert credit(one, beta=0.5)[1, 1] == pytest.approx(-OUTCOME + 0.5 * process), credit


def test_statistics_by_kind_read_the_names_of_kinds() -> None:
    by_kind = dual_granularity_credit(KINDS, beta=0.5, statistics="kind")
    assert by_kind[0].tolist() == pytest.approx([OUTCOME + 0.5] * 2)
    one = replace(KINDS, step_kinds_BS=(("query", "query"), ("query", "query")))  # mean .5, deviation sqrt(.1)
    assert dual_granularity_credit(one, beta=1.0, statistics="kind")[0, 0] == pytest.approx(
        OUTCOME + 0.4 / math.sqrt(0.1)
    )


@pytest.mark.parametrize("credit", [potential_difference_credit, state_gain_credit])
def test_an_unknown_outcome_trains_nothing_and_is_left_out(credit) -> None:
    unknown = replace(KINDS, outcome_B=torch.tensor([float("nan"), 0.2]))
    assert credit(unknown).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("credit", [potential_difference_credit, state_gain_credit])
def test_process_credit_of_beta_0_is_the_outcome_alone(credit) -> None:
    assert credit(KINDS, beta=0.0)[0].tolist() == pytest.approx([OUTCOME] * 2)


def test_rewards_of_each_kind_may_be_normalised_before_they_are_added_up() -> None:
    two = credit_inputs_of(
        step_rewards_BS=torch.tensor([[0.0], [0.2], [0.0]]),
        step_mask_BS=torch.ones(3, 1, dtype=torch.bool),
        outcome_B=torch.tensor([10.0, 0.0, 0.0]),
        outcomes_BR=torch.tensor([[10.0], [0.0], [0.0]]),
        group_size=3,
    )
    each = grpo_credit(two, scale_rewards="each").flatten()
    assert each.tolist() == pytest.approx([0.578027, 0.576558, -1.154585], abs=1e-5), "steps are one more reward"
    outcome = dual_granularity_credit(two, beta=0.0, scale_rewards="each").flatten()
    assert outcome.tolist() == pytest.approx([1.154582, -0.577291, -0.577291], abs=1e-3)
    process = dual_granularity_credit(two, beta=1.0, scale_rewards="each").flatten() - outcome
    assert process.tolist() == pytest.approx([-0.707107, 1.414214, -0.707107], abs=1e-5)
    nothing = replace(two, outcomes_BR=torch.zeros(3, 0), outcome_weights_R=torch.zeros(0))
    assert not dual_granularity_credit(nothing, beta=0.0, scale_rewards="each").any()

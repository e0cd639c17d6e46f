"""Generalised advantages and where rewards lie, by hand."""

from __future__ import annotations

import pytest
import torch

from modules.functional.gae import explained_variance, generalized_advantages, token_rewards, value_sums

NAN = float("nan")
MASK = torch.tensor([[True, True, False, False, True]])
REWARDS = torch.tensor([[0.0, 0.0, NAN, 7.0, 1.0]])
VALUES = torch.tensor([[0.5, 0.6, 0.9, NAN, 0.8]])


@pytest.mark.parametrize(("lam", "expected"), [(1.0, [0.5, 0.4, 0.0, 0.0, 0.2]), (0.95, [0.4705, 0.39, 0.0, 0.0, 0.2])])
def test_passages_are_bridged_whatever_stands_there(lam: float, expected: list[float]) -> None:
    """With the passages of value .9 as states of their own it would be .46216, .381225, .2 at lambda .95."""
    advantages, returns = generalized_advantages(REWARDS, VALUES, MASK, lam=lam)
    assert advantages[0].tolist() == pytest.approx(expected, abs=1e-6)
    sums = [a + v if m else 0.0 for a, v, m in zip(expected, (0.5, 0.6, 0, 0, 0.8), MASK[0].tolist(), strict=True)]
    assert returns[0].tolist() == pytest.approx(sums, abs=1e-6)


def test_passages_as_states_would_give_other_numbers() -> None:
    """The numbers that bridging avoids are those of the same rule over all five tokens."""
    rewards, values = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.6, 0.9, 0.9, 0.8]])
    advantages, _ = generalized_advantages(rewards, values, torch.ones(1, 5), lam=0.95)
    assert advantages[0, [0, 1, 4]].tolist() == pytest.approx([0.46216, 0.381225, 0.2], abs=1e-5)


def test_the_discount_is_a_policy_token_s() -> None:
    advantages, returns = generalized_advantages(REWARDS, VALUES, MASK, gamma=0.5, lam=0.5)
    last = 1 - 0.8
    second = 0.5 * 0.8 - 0.6 + 0.25 * last
    first = 0.5 * 0.6 - 0.5 + 0.25 * second
    assert advantages[0].tolist() == pytest.approx([first, second, 0, 0, last], abs=1e-6)
    assert returns[0].tolist() == pytest.approx([first + 0.5, second + 0.6, 0, 0, 1], abs=1e-6)


def test_whole_numbers_are_values_too() -> None:
    advantages_BT, returns_BT = generalized_advantages(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0, 0]]), torch.ones(1, 2, dtype=torch.bool), gamma=0.5
    )
    assert advantages_BT.tolist() == returns_BT.tolist() == [[0.5, 1.0]]


def test_nothing_follows_the_last_policy_token_and_rows_do_not_meet() -> None:
    values = torch.tensor([[0.3, 9.0, 9.0], [0.1, 0.2, 0.4], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]])
    advantages, returns = generalized_advantages(torch.tensor([[1.0, 9, 9], [0, 0, 2], [9, 9, 9]]), values, mask)
    assert advantages.tolist() == [pytest.approx(row) for row in ([0.7, 0, 0], [1.9, 1.8, 1.6], [0, 0, 0])]
    assert returns.tolist() == [pytest.approx(row) for row in ([1, 0, 0], [2, 2, 2], [0, 0, 0])]


def test_rewards_lie_on_the_last_policy_token_of_their_step() -> None:
    rewards = token_rewards(
        torch.tensor([[0.1, 0.2, 0.4], [0.3, 0.0, 0.0]]),
        torch.tensor([[2, 1, 2], [3, 0, 0]]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([[True] * 5, [True, True, True, False, False]]),
    )
    assert rewards.tolist() == [pytest.approx([0, 0.1, 0.2, 0, 1.4]), pytest.approx([0, 0, 2.3, 0, 0])]


def test_a_frozen_step_adds_its_reward_to_the_policy_token_that_led_to_it() -> None:
    """Steps of 2, 2 and 1 tokens, of which the second, or the first, is a frozen agent's."""
    rewards = token_rewards(
        torch.tensor([[0.1, 0.2, 0.4], [0.1, 0.2, 0.4], [0.1, 0.2, 0.4]]),
        torch.tensor([[2, 2, 1], [2, 2, 1], [2, 2, 1]]),
        torch.tensor([1.0, 1.0, 1.0]),
        torch.tensor([[True, True, False, False, True], [False, False, True, True, False], [False] * 5]),
    )
    assert rewards[0].tolist() == pytest.approx([0, 0.3, 0, 0, 1.4])
    assert rewards[1].tolist() == pytest.approx([0, 0, 0, 1.6, 0]), "no token led to the first"
    assert rewards[2].tolist() == [0] * 5


def test_explained_variance_is_1_0_or_less() -> None:
    """Of returns 1, 2, 3, 6, and a passage between them."""
    returns = torch.tensor([[1.0, 2.0, NAN], [3.0, 6.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])

    def explained(*values: float) -> float:
        table = torch.tensor([[*values[:2], NAN], [*values[2:], 5.0]])
        return float(explained_variance(value_sums(table, returns, mask)))

    assert explained(1, 2, 3, 6) == 1
    assert explained(11, 12, 13, 16) == pytest.approx(1), "an offset is no variance"
    assert explained(0, 0, 0, 0) == pytest.approx(0)
    assert explained(2, 2, 2, 2) == pytest.approx(0)
    assert explained(1, 2, 3, 4) == pytest.approx(1 - 0.75 / 3.5)
    assert explained(-1, -2, -3, -6) == pytest.approx(1 - 4)


def test_sums_add_up_over_ranks() -> None:
    values, returns = torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([[1.0, 3.0], [1.0, 7.0]])
    mask = torch.tensor([[True, True], [True, False]])
    whole = value_sums(values, returns, mask)
    assert whole.tolist() == [3, 3, 5, 11, 2, 2]
    parts = value_sums(values[:1], returns[:1], mask[:1]) + value_sums(values[1:], returns[1:], mask[1:])
    assert torch.equal(parts, whole)


def test_returns_that_do_not_vary_explain_nothing() -> None:
    ones = torch.ones(1, 3)
    assert explained_variance(value_sums(0 * ones, ones, ones.bool())).isnan()

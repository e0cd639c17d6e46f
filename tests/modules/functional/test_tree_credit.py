"""Credit of the actions of a tree, by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from modules.functional.credit import tree_credit, tree_gae_credit
from modules.functional.credit_inputs import MissingInput
from modules.functional.gae import generalized_advantages
from tests.credits import credit_inputs_of

# Two leaves share the actions r and a; the third is another branch. Of r two tokens, of the others one, s is frozen.
INPUTS = credit_inputs_of(
    step_rewards_BS=torch.tensor([[0.9, 0.2, 0.0], [0.9, 0.4, 0.0], [0.1, 0.0, 0.0]]),
    step_mask_BS=torch.tensor([[True, True, True], [True, True, True], [True, False, False]]),
    outcome_B=torch.tensor([1.0, 0.0, 0.5]),
    group_size=1,
    step_lengths_BS=torch.tensor([[2, 1, 1], [2, 1, 1], [1, 0, 0]]),
    step_turns_BS=(("r", "a", "s"), ("r", "b", "t"), ("q", "", "")),
    trained_BT=torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 0]]).bool(),
    values_BT=torch.tensor([[0.3, 0.5, 0.1, 9.0], [0.3, 0.5, 0.2, 9.0], [0.0, 9.0, 9.0, 9.0]]),
)
NAN = math.nan


def test_the_credit_of_an_action_is_the_mean_of_its_leaves_and_its_process_reward() -> None:
    assert float(tree_credit([1, 0, 0], 0.9)) == pytest.approx(0.61667, abs=1e-5)
    assert float(tree_credit(torch.tensor([1.0, 0.0, 0.0]), torch.tensor(0.9))) == pytest.approx(0.61667, abs=1e-5)
    assert float(tree_credit([1.0], 0.5, alpha=1.0, beta=0.2)) == pytest.approx(1.1)
    assert float(tree_credit([math.nan], 0.9, alpha=0.0)) == pytest.approx(0.45), "what has no weight may be unknown"
    assert float(tree_credit([1.0], math.nan, beta=0.0)) == pytest.approx(0.5)
    assert tree_credit([1.0], torch.tensor([0.5])).shape == ()
    assert float(tree_credit([0.5, 1.0], NAN, alpha=1.0, beta=0.0)) == 0.75, "without a judge"
    assert math.isnan(float(tree_credit([1.0], NAN))), "a judge that failed is no reward"


def test_a_shared_action_has_one_advantage_and_nothing_follows_an_action() -> None:
    advantages = tree_gae_credit(INPUTS, lam=0.5)
    shared = 0.5 * 0.5 + 0.5 * 0.9
    last = shared - 0.5
    assert advantages[0].tolist() == pytest.approx([0.5 - 0.3 + 0.5 * last, last, 0.5 + 0.1 - 0.1, 0.0])
    assert advantages[1, :2].tolist() == advantages[0, :2].tolist()
    assert float(advantages[1, 2]) == pytest.approx(0.2 - 0.2)
    assert advantages[2].tolist() == pytest.approx([0.25 + 0.05, 0.0, 0.0, 0.0])


def test_an_action_of_its_own_is_generalised_as_an_episode_is() -> None:
    rewards, values = torch.tensor([[0.0, 0.7, 0.0]]), torch.tensor([[0.3, 0.5, 0.0]])
    alone = generalized_advantages(rewards, values, torch.tensor([[True, True, False]]), gamma=0.9, lam=0.8)[0]
    assert tree_gae_credit(INPUTS, gamma=0.9, lam=0.8)[0, :2].tolist() == pytest.approx(alone[0, :2].tolist())


def test_what_is_unknown_has_no_advantage_and_is_no_leaf() -> None:
    process = INPUTS.step_rewards_BS.clone()
    process[0, 1] = NAN
    unjudged = tree_gae_credit(dataclasses.replace(INPUTS, step_rewards_BS=process))
    assert float(unjudged[0, 2]) == 0
    assert unjudged[0, :2].tolist() == pytest.approx(tree_gae_credit(INPUTS)[0, :2].tolist())
    assert float(tree_gae_credit(dataclasses.replace(INPUTS, step_rewards_BS=process), beta=0.0, alpha=1.0)[0, 2]) != 0
    failed = tree_gae_credit(dataclasses.replace(INPUTS, outcome_B=torch.tensor([1.0, NAN, NAN])), lam=1.0)
    assert float(failed[0, 1]) == pytest.approx(0.5 * 1.0 + 0.5 * 0.9 - 0.5), "of the one known leaf"
    assert failed[2].tolist() == [0, 0, 0, 0]
    assert float(failed[1, 2]) == 0


def test_an_episode_is_one_leaf_of_an_action_that_holds_several_steps() -> None:
    twice = tree_gae_credit(
        dataclasses.replace(INPUTS, step_turns_BS=(("r", "r", "s"), ("r", "b", "t"), ("q", "", "")))
    )
    assert float(twice[0, 2]) == pytest.approx(0.5 * 0.5 + 0.5 * 0.2 - 0.1)


def test_it_needs_a_critic() -> None:
    with pytest.raises(MissingInput, match="reads a critic's values"):
        tree_gae_credit(dataclasses.replace(INPUTS, values_BT=None))

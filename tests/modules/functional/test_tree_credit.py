"""Credit of the actions of a tree, by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from modules.functional.credit import (
    leaf_groups,
    leaf_groups_credit,
    node_values,
    node_values_credit,
    tree_credit,
    tree_gae_credit,
)
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


def test_a_node_is_compared_with_its_root_and_its_parent() -> None:
    # A root with a{1, 1} and b{0, 1, 0}: V is .6, 1 and 1/3.
    assert float(node_values(1.0, 0.6, 0.6, 2)) == pytest.approx(0.565685, abs=1e-6)
    assert float(node_values(1 / 3, 0.6, 0.6, 3)) == pytest.approx(-0.307920, abs=1e-6)
    assert float(node_values(torch.tensor(1.0), 1 / 3, 0.6, torch.tensor(1))) == pytest.approx(1.066667, abs=1e-6)
    assert float(node_values(0.0, 1 / 3, 0.6, 1)) == pytest.approx(-0.933333, abs=1e-6)
    assert float(node_values(1.0, 0.6, 0.6, 2, divide=False)) == pytest.approx(0.8)


@pytest.mark.parametrize("trees", [torch.tensor([0, 0, 0, 5, 5, 5]), ["a", "a", "a", "b", "b", "b"]])
def test_leaves_are_compared_with_all_of_their_question_and_with_those_of_their_tree(trees) -> None:
    given = leaf_groups(torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.0]), trees)
    assert given.tolist() == pytest.approx([1.868341, -1.800195, 1.868341, *[-0.645496] * 3], abs=2e-6)


def test_a_tree_of_one_leaf_adds_nothing_and_an_unknown_leaf_is_left_out() -> None:
    given = leaf_groups(torch.tensor([1.0, NAN, 0.0]), [1, 1, 2])
    assert given.tolist() == pytest.approx([0.707106, 0, -0.707106], abs=2e-6)
    assert leaf_groups(torch.tensor([1, 1, 1]), [1, 1, 2]).tolist() == [0, 0, 0]


# Of one question the tree above, each path of two turns; of another a lone path, and one whose outcome is unknown.
TREE = credit_inputs_of(
    step_rewards_BS=torch.zeros(7, 2),
    step_mask_BS=torch.ones(7, 2, dtype=torch.bool),
    outcome_B=torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, NAN]),
    group_size=1,
    questions_B=("q", "q", "q", "q", "q", "p", "p"),
    step_turns_BS=(("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("b", "b3"), ("c", "c1"), ("c", "c2")),
)


def test_a_shared_decision_has_the_credit_of_its_node_in_all_its_paths() -> None:
    a, b = [0.565685, 0.4], -0.307920
    expected = [a, a, [b, -0.933333], [b, 1.066667], [b, -0.933333], [0, 0], [0, 0]]
    assert node_values_credit(TREE).tolist() == [pytest.approx(row, abs=2e-6) for row in expected]


def test_all_steps_of_a_path_have_its_leaf_s_advantage() -> None:
    # All leaves: mean .6, std sqrt(.3); of b mean 1/3, std sqrt(1/3). a is flat, as is the last question.
    right, wrong = 0.4 / math.sqrt(0.3), -0.6 / math.sqrt(0.3)
    own = [2 / 3 / math.sqrt(1 / 3), -1 / 3 / math.sqrt(1 / 3)]
    leaves = [right, right, wrong + own[1], right + own[0], wrong + own[1], 0, 0]
    assert leaf_groups_credit(TREE).tolist() == [pytest.approx([leaf] * 2, abs=1e-5) for leaf in leaves]


def test_of_independent_episodes_each_is_its_own_tree() -> None:
    chains = dataclasses.replace(
        TREE, group_size=7, questions_B=("q",) * 7, step_turns_BS=tuple((f"{n}", f"{n}+") for n in range(7))
    )
    mean = 4 / 6
    assert node_values_credit(chains)[0].tolist() == pytest.approx([2 * (1 - mean), 1 - mean], abs=1e-6)
    assert leaf_groups_credit(chains)[0].tolist() == pytest.approx([(1 - mean) / math.sqrt(4 / 15)] * 2, abs=1e-5)

"""Turn returns and anchor returns of two small episodes, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from modules.functional.credit import anchor_return, anchor_return_credit, turn_returns, turn_returns_credit
from modules.functional.returns import discounted_returns
from tests.credits import credit_inputs_of

NAN = math.nan
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
GAINS = torch.tensor([[0.2, -0.05, 0.0], [0.0, 0.0, 0.0]])
F1 = torch.tensor([0.8, 0.0])
JOINT = [[1.199269, 1.167710, 1.925143], [-1.199269, -0.599635, 0]]
SEPARATE = [[1.462910, 0.074180, 1], [-1.462910, -1, 0]]


def approx(rows: list[list[float]]) -> list[object]:
    return [pytest.approx(row, abs=2e-6) for row in rows]


def test_joint_normalises_all_rewards_of_the_group_and_sums_them_from_each_turn_on() -> None:
    rewards = torch.tensor([[0.2, -0.05, 0.8], [0.0, 0.0, 7.0]])
    assert turn_returns(rewards, MASK, group_size=2).tolist() == approx(JOINT)
    assert turn_returns(GAINS, MASK, group_size=2, outcome_B=F1).tolist() == approx(JOINT)
    discounted = [[1.049440, 1.071452, 1.925143], [-1.169288, -0.599635, 0]]
    assert turn_returns(rewards, MASK, group_size=2, gamma=0.95).tolist() == approx(discounted)


def test_separate_normalises_gains_and_outcomes_each() -> None:
    separate = {"group_size": 2, "normalise": "separate", "outcome_B": F1}
    unknown = torch.tensor([[0.2, -0.05, NAN], [0.0, NAN, 0.0]])
    placed = torch.tensor([[0.2, -0.05, 0.8], [0.0, 0.0, 0.0]])
    for gains in (GAINS, unknown, placed):
        assert turn_returns(gains, MASK, **separate).tolist() == approx(SEPARATE)
    searches = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()  # the last step of each has a gain, and counts
    expected = [[SEPARATE[0][0], SEPARATE[0][1], 0], [SEPARATE[1][0], 0, 0]]
    assert turn_returns(GAINS, searches, **separate).tolist() == approx(expected)


def test_what_is_alike_or_alone_has_no_advantage_and_what_is_unknown_is_left_out() -> None:
    for normalise in ("joint", "separate"):
        flat = turn_returns(
            torch.ones(2, 3), MASK, group_size=2, normalise=normalise, outcome_B=torch.ones(2) * (normalise != "joint")
        )
        assert not flat.any() or normalise == "joint"
        alone = turn_returns(torch.ones(1, 1), torch.ones(1, 1), group_size=1, normalise=normalise, outcome_B=F1[:1])
        assert alone.tolist() == [[0]]
    assert not turn_returns(torch.ones(2, 3), MASK, group_size=2).any()
    gains = torch.tensor([[0.2, NAN, -0.05], [0.0, 0.0, 0.0]])  # the unknown one adds nothing to the sums
    bridged = turn_returns(gains, MASK, group_size=2)
    known = turn_returns(gains.nan_to_num(), MASK & gains.isfinite(), group_size=2)
    assert bridged[0, 0] == known[0, 0]
    assert bridged[0, 1] == known[0, 2] == bridged[0, 2]
    untrained = turn_returns(GAINS, MASK, group_size=2, normalise="separate", outcome_B=torch.tensor([NAN, 0.5]))
    assert untrained.tolist() == approx([[0, 0, 0], [-0.462910, 0, 0]]), "its gains stay in the statistics"


INPUTS = credit_inputs_of(
    step_rewards_BS=GAINS,
    step_mask_BS=MASK,
    outcome_B=F1,
    group_size=2,
    step_kinds_BS=(("query", "query", "answer"), ("query", "answer", "")),
)


def test_the_component_pays_the_outcome_on_the_last_step_and_knows_answers_by_their_kind() -> None:
    assert turn_returns_credit(INPUTS).tolist() == approx(JOINT)
    assert turn_returns_credit(INPUTS, normalise="separate").tolist() == approx(SEPARATE)
    # The second episode was cut after its search: gains .2, -.05, 0 as before, but no answer's step.
    cut = replace(
        INPUTS,
        step_mask_BS=torch.tensor([[1, 1, 1], [1, 0, 0]]).bool(),
        step_kinds_BS=(("query", "query", "answer"), ("query", "", "")),
    )
    expected = [SEPARATE[0], [SEPARATE[1][0], 0, 0]]
    assert turn_returns_credit(cut, normalise="separate").tolist() == approx(expected)


def test_returns_are_discounted_a_step_of_the_mask() -> None:
    mask = torch.tensor([[True, False, True]])
    assert discounted_returns(torch.tensor([[1.0, 9.0, 2.0]]), mask, gamma=0.5).tolist() == [[2, 0, 2]]


TWICE, BOTH = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2).bool()
STATES = torch.tensor([[7, 3], [7, 5]])


def test_steps_are_compared_with_those_from_their_state_and_episodes_with_each_other() -> None:
    centred = anchor_return(TWICE, BOTH, STATES, group_size=2)
    assert centred.tolist() == approx([[0.5 + 0.475, 0.5], [-0.5 - 0.475, -0.5]])
    scaled = anchor_return(TWICE, BOTH, STATES, group_size=2, scale=True)
    assert scaled.tolist() == approx([[2 * 0.707106, 0.707106], [-2 * 0.707106, -0.707106]])
    names = (("start", "a"), ("start", "b"))
    assert torch.equal(anchor_return(TWICE, BOTH, names, group_size=2), centred)
    assert anchor_return(TWICE, BOTH, STATES, group_size=2, omega=0.0).tolist() == approx([[0.5] * 2, [-0.5] * 2])
    assert not anchor_return(TWICE, BOTH, STATES, group_size=1).any(), "alone in the question"


@pytest.mark.parametrize(("steps_weigh", "expected"), [(False, [0.707106, -0.707106]), (True, [0.5, -1.5])])
def test_an_episode_counts_once_or_once_a_step(steps_weigh: bool, expected: list[float]) -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    given = anchor_return(rewards, mask, [[1, 2, 3], [4, 0, 0]], group_size=2, scale=True, steps_weigh=steps_weigh)
    assert given.flatten().tolist() == pytest.approx([*[expected[0]] * 3, expected[1], 0, 0], abs=1e-5)


def test_an_unknown_reward_takes_its_episode_out_of_both_statistics() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.5, NAN]])
    states = torch.tensor([[7, 3], [7, 5], [7, 3]])
    given = anchor_return(rewards, torch.ones(3, 2), states, group_size=3)
    assert given.tolist() == approx([[0.975, 0.5], [-0.975, -0.5], [0, 0]])


def test_the_component_names_states_by_all_that_is_known_or_by_the_last_passages() -> None:
    inputs = credit_inputs_of(
        step_rewards_BS=torch.zeros(2, 2),
        step_mask_BS=BOTH,
        outcome_B=torch.tensor([1.0, 0.0]),
        group_size=2,
        step_states_BS=(("start", "a"), ("start", "b")),
        step_passages_BS=(("", "d"), ("", "d")),
    )
    assert anchor_return_credit(inputs).tolist() == approx([[0.975, 0.5], [-0.975, -0.5]])
    weaker = anchor_return_credit(inputs, anchor="last_passages")
    assert weaker.tolist() == approx([[0.975, 1.0], [-0.975, -1.0]])

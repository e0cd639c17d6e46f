"""Process advantages worked out by hand: compared within kinds, as differences, and within states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from modules.functional.credit import Credit, potential_difference_credit, state_gain_credit
from modules.functional.process_advantages import numbered, process_advantages
from tests.credits import credit_inputs_of

NAN = float("nan")
QUERY, READ, ANSWER = 0, 1, 2
# An episode that answers after one search, one that answers after two; the scores know the kind of a step alone.
KINDS = torch.tensor([[QUERY, READ, ANSWER, 3, 3], [QUERY, READ, QUERY, READ, ANSWER]])
MASK = KINDS < 3
BY_KIND_ALONE = torch.tensor([0.84, 0.93, 0.60, 0.0])[KINDS]
# The first step's passages and what was read of them are the same in both.
STATES = torch.tensor([[0, 1, 2, 7, 7], [0, 1, 2, 3, 4]])


def within(rewards_BS: Tensor, statistics: Any, **settings: Any) -> Tensor:
    return process_advantages(rewards_BS, MASK, group_size=2, statistics=statistics, step_kinds_BS=KINDS, **settings)


def process(
    credit: Credit,
    rewards_BS: Tensor,
    mask_BS: Tensor = MASK,
    kinds_BS: Tensor = KINDS,
    states_BS: Tensor = STATES,
    valid_BS: Tensor | None = None,
    group_size: int = 2,
) -> Tensor:
    """The process advantage of a credit function: its advantages where all outcomes are equal."""
    kinds, states = (tuple(tuple(map(str, row)) for row in x.tolist()) for x in (kinds_BS, states_BS))
    inputs = credit_inputs_of(
        step_rewards_BS=rewards_BS,
        step_mask_BS=mask_BS,
        outcome_B=torch.zeros(len(mask_BS)),
        group_size=group_size,
        step_kinds_BS=kinds,
        step_states_BS=states,
        step_valid_BS=torch.ones_like(mask_BS) if valid_BS is None else valid_BS,
    )
    return credit(inputs, beta=1.0)  # pyright: ignore[reportCallIssue]


def approx(rows: list[list[float]]) -> list[object]:
    return [pytest.approx(row, abs=1e-5) for row in rows]


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("statistics", ["kind", "kind_index"])
def test_answering_is_not_punished_for_being_an_answer(statistics: str, scale: bool) -> None:
    assert within(BY_KIND_ALONE, statistics, scale=scale).tolist() == [[0] * 5] * 2


def test_nor_where_potentials_or_states_are_compared() -> None:
    assert process(potential_difference_credit, BY_KIND_ALONE).tolist() == [[0] * 5] * 2
    assert process(state_gain_credit, BY_KIND_ALONE).tolist() == [[0] * 5] * 2


def test_but_it_is_where_kinds_are_compared_with_each_other() -> None:
    # The mean of 3 x .84, 3 x .93 and 2 x .6 is .81375; of .6 and .84 it is .72.
    answers = (KINDS == ANSWER) & MASK
    assert within(BY_KIND_ALONE, "step", scale=False)[answers].tolist() == pytest.approx([0.6 - 0.81375] * 2)
    assert within(BY_KIND_ALONE, "step_index")[0].tolist() == pytest.approx([0, 0, -1, 0, 0])


REWARDS = torch.tensor([[0.9, 0.8, 0.2, 0.0, 0.0], [0.7, 0.8, 0.2, 0.6, 0.8]])


def test_a_step_out_of_format_is_compared_with_all_steps_of_the_question_and_changes_no_kind() -> None:
    """A fourth kind, that of what cannot be read, in place of the last answer: beside others of it, it would have 0."""
    rewards, kinds = REWARDS.clone(), KINDS.clone()
    rewards[1, 4], kinds[1, 4] = 0.0, 3
    valid = kinds < 3
    valid[0, 3:] = True
    own: Any = {"group_size": 2, "step_kinds_BS": kinds, "step_valid_BS": valid}
    # All eight: sum 4.2, mean .525, squares 3.02. Queries .9 .7 .2: mean .6.
    unscaled = process_advantages(rewards, MASK, statistics="kind", scale=False, **own)
    assert unscaled.tolist() == approx([[0.3, 0.066667, 0, 0, 0], [0.1, 0.066667, -0.4, -0.133333, -0.525]])
    std = (3.02 / 8 - 0.525**2) ** 0.5
    assert process_advantages(rewards, MASK, statistics="kind", **own)[1, 4] == pytest.approx(-0.525 / std)
    for statistics in ("step", "step_index"):
        assert torch.equal(
            process_advantages(rewards, MASK, statistics=statistics, **own),
            process_advantages(rewards, MASK, group_size=2, statistics=statistics),
        )
    gains = process(potential_difference_credit, rewards, kinds_BS=kinds, valid_BS=valid)
    assert gains[1].tolist() == approx([[0.1, -0.033333, -0.466667, 0.266667, -0.391667]])[0]


def test_from_one_state_a_step_out_of_format_is_worse_than_a_wrong_one() -> None:
    rewards = torch.tensor([[0.9, 0.6], [0.2, 0.5], [0.0, 0.6]])
    kinds, states = torch.tensor([[0, 1], [0, 1], [2, 1]]), torch.tensor([[0, 1], [0, 2], [0, 3]])
    valid = torch.tensor([[True, True], [True, True], [False, True]])
    # Queries .9 .2: +.35, -.35; the third, less the mean .46667 of all six; each less the mean of the two others.
    gains = process(state_gain_credit, rewards, torch.ones(3, 2).bool(), kinds, states, valid, group_size=3)
    assert gains[:, 0].tolist() == pytest.approx([0.35 + 0.408333, -0.35 + 0.058333, -0.466667], abs=1e-5)


def test_each_kind_has_a_mean_and_a_deviation_of_its_own() -> None:
    # Queries .9 .7 .2: mean .6, deviation sqrt((.09 + .01 + .16) / 3); reads .8 .8 .6: mean .73333; answers .2 .8.
    assert within(REWARDS, "kind", scale=False).tolist() == approx(
        [[0.3, 0.066667, -0.3, 0, 0], [0.1, 0.066667, -0.4, -0.133333, 0.3]]
    )
    std, half = (0.26 / 3) ** 0.5, 0.5**0.5
    assert within(REWARDS, "kind").tolist() == approx(
        [[0.3 / std, half, -1, 0, 0], [0.1 / std, half, -0.4 / std, -2 * half, 1]]
    )


def test_a_kind_at_a_place_is_compared_with_that_kind_at_that_place() -> None:
    # Only the first queries have another to be compared with that differs.
    assert within(REWARDS, "kind_index", scale=False).tolist() == approx([[0.1, 0, 0, 0, 0], [-0.1, 0, 0, 0, 0]])


def test_without_a_deviation_small_differences_stay_small() -> None:
    sure = torch.tensor([[0.96, 0.95, 0.94, 0.0, 0.0], [0.96, 0.95, 0.96, 0.95, 0.96]])
    assert within(sure, "kind")[:, 2:].abs().max() == pytest.approx(1.0, abs=1e-3)
    assert within(sure, "kind", scale=False).abs().max() == pytest.approx(0.01)


def test_a_difference_blames_the_step_that_went_wrong_and_not_what_follows() -> None:
    # Of their kinds: .2 -.2; .4 -.4; -, and of the two queries of the second episode what remains.
    kinds = torch.tensor([[QUERY, READ, ANSWER], [QUERY, READ, ANSWER]])
    rewards = torch.tensor([[0.9, 0.9, 0.8], [0.9, 0.1, 0.0]])  # the second misreads, and all after it is lost
    every = torch.ones(2, 3, dtype=torch.bool)
    given = process(potential_difference_credit, rewards, every, kinds)
    assert given.tolist() == approx([[0, 0.4, 0.0], [0, -0.4, 0.0]])
    compared = process_advantages(rewards, every, group_size=2, statistics="kind", step_kinds_BS=kinds, scale=False)
    assert compared.tolist() == approx([[0, 0.4, 0.4], [0, -0.4, -0.4]]), "which blames the answer too"


def test_differences_of_an_episode_add_up_to_its_last_potential() -> None:
    given = process(potential_difference_credit, REWARDS)
    assert given.sum(dim=1).tolist() == pytest.approx([-0.3, 0.3], abs=1e-6)
    assert given[1].tolist() == pytest.approx([0.1, -0.033333, -0.466667, 0.266667, 0.433333], abs=1e-5)


def test_a_difference_to_something_unknown_is_none() -> None:
    kinds = torch.zeros(2, 4, dtype=torch.long)
    rewards = torch.tensor([[0.9, NAN, 0.5, 0.7], [0.1, 0.3, 0.3, 0.5]])
    # Known: .9 .5 .7 .1 .3 .3 .5, mean .471429.
    given = process(potential_difference_credit, rewards, torch.ones(2, 4, dtype=torch.bool), kinds)
    assert given.tolist() == approx([[0.428571, 0, 0, 0.2], [-0.371429, 0.2, 0, 0.2]])


def test_a_step_that_nobody_sampled_is_passed_over() -> None:
    mask = torch.tensor([[True, False, True], [True, True, False]])
    given = process(
        potential_difference_credit,
        torch.tensor([[1.0, 9.0, 0.0], [0.0, 1.0, 9.0]]),
        mask,
        torch.zeros(2, 3, dtype=torch.long),
    )
    assert given.tolist() == approx([[0.5, 0, -1], [-0.5, 1, 0]])


def test_a_step_is_compared_with_the_others_from_its_state() -> None:
    # Of their kinds: .3 .0667 -.3 and .1 .0667 -.4 -.1333 .3; the first three states are shared, the last two are not.
    given = process(state_gain_credit, REWARDS)
    assert given.tolist() == approx([[0.2, 0, 0.1, 0, 0], [-0.2, 0, -0.1, 0, 0]])
    apart = process(state_gain_credit, REWARDS, states_BS=torch.arange(10).reshape(2, 5))
    assert not apart.any(), "nothing to compare with"


def test_what_is_unknown_is_compared_with_nothing() -> None:
    rewards = REWARDS.clone()
    rewards[0, 0] = NAN  # queries .7 and .2
    given = process(state_gain_credit, rewards)
    assert given.tolist() == approx([[0, 0, -0.05, 0, 0], [0, 0, 0.05, 0, 0]])


def test_questions_know_nothing_of_each_other() -> None:
    both = [torch.cat([x, x.flip(0)]) for x in (MASK, KINDS, STATES)]
    rewards = torch.cat([REWARDS, 5 * REWARDS.flip(0)])
    for credit in (potential_difference_credit, state_gain_credit):
        given, alone = process(credit, rewards, *both), process(credit, REWARDS)
        assert torch.equal(given[:2], alone)
        assert torch.allclose(given[2:], 5 * alone.flip(0))


def test_kinds_are_needed_where_they_are_compared() -> None:
    with pytest.raises(ValueError, match="'kind' needs step_kinds_BS"):
        process_advantages(REWARDS, MASK, group_size=2, statistics="kind")


def test_names_are_numbered_within_a_question() -> None:
    names = (("query", "answer", ""), ("answer", "query", "answer"), ("answer", "", ""), ("query", "", ""))
    assert numbered(names, 2).tolist() == [[0, 1, 2], [1, 0, 1], [0, 1, 1], [2, 1, 1]]

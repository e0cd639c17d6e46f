"""Credit functions of process rewards, from one `CreditInputs`, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from modules.functional.credit import CreditInputs, MissingInput, dual_granularity
from modules.functional.process_credit import potential_difference, state_gain

NAN = float("nan")
INPUTS = CreditInputs(
    step_rewards_BS=torch.tensor([[0.9, 0.7], [0.1, 0.3]]),
    step_mask_BS=torch.ones(2, 2, dtype=torch.bool),
    outcome_B=torch.tensor([1.2, 0.2]),
    group_size=2,
    step_kinds_BS=(("query", "answer"), ("query", "answer")),
    step_states_BS=(("start", "a"), ("start", "b")),
)
OUTCOME = 0.5 / (math.sqrt(0.5) + 1e-4)  # of the better episode; the sample std of 1.2 and 0.2 is sqrt(0.5)


def test_a_process_advantage_is_added_to_the_outcome_s() -> None:
    kinds = partial(dual_granularity, statistics="kind", scale=False)
    for credit, process in ((potential_difference, [0.4, -0.2]), (state_gain, [0.8, 0.0]), (kinds, [0.4, 0.2])):
        given = credit(INPUTS, beta=0.5).tolist()
        assert given[0] == pytest.approx([OUTCOME + 0.5 * value for value in process]), credit
        assert given[1] == pytest.approx([-OUTCOME - 0.5 * value for value in process]), credit


def test_a_step_out_of_format_has_no_shelter_among_its_kind() -> None:
    one = replace(
        INPUTS,
        step_rewards_BS=torch.tensor([[0.9, 0.7], [0.1, 0.0]]),
        step_kinds_BS=(("query", "answer"), ("query", "invalid")),
        step_valid_BS=torch.tensor([[True, True], [True, False]]),
        step_states_BS=(("start", "a"), ("start", "a")),
    )  # of all four the mean is .425; queries are +.4 and -.4, the answer is alone of its kind
    kinds = partial(dual_granularity, statistics="kind", scale=False)
    for credit, process in ((kinds, -0.425), (potential_difference, -0.425 + 0.4), (state_gain, -0.425)):
        assert credit(one, beta=0.5)[1, 1] == pytest.approx(-OUTCOME + 0.5 * process), credit


def test_statistics_by_kind_read_the_names_of_kinds() -> None:
    by_kind = dual_granularity(INPUTS, beta=0.5, statistics="kind")
    assert by_kind[0].tolist() == pytest.approx([OUTCOME + 0.5] * 2)
    one = replace(INPUTS, step_kinds_BS=(("query", "query"), ("query", "query")))  # mean .5, deviation sqrt(.1)
    assert dual_granularity(one, beta=1.0, statistics="kind")[0, 0] == pytest.approx(OUTCOME + 0.4 / math.sqrt(0.1))


@pytest.mark.parametrize("credit", [potential_difference, state_gain])
def test_an_unknown_outcome_trains_nothing_and_is_left_out(credit) -> None:
    unknown = replace(INPUTS, outcome_B=torch.tensor([NAN, 0.2]))
    assert credit(unknown).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("credit", [potential_difference, state_gain])
def test_beta_0_is_the_outcome_alone(credit) -> None:
    assert credit(INPUTS, beta=0.0)[0].tolist() == pytest.approx([OUTCOME] * 2)


def test_they_say_what_they_lack() -> None:
    with pytest.raises(MissingInput, match="potential_difference needs step_kinds_BS"):
        potential_difference(replace(INPUTS, step_kinds_BS=None))
    with pytest.raises(MissingInput, match="state_gain needs step_kinds_BS and step_states_BS"):
        state_gain(replace(INPUTS, step_states_BS=None))

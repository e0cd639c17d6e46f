"""ProRAG's credit function, from one `CreditInputs`, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from modules.functional.credit import CreditInputs, dual_granularity

INPUTS = CreditInputs(
    step_rewards_BS=torch.tensor([[0.9, 0.5], [0.1, 0.0]]),
    step_mask_BS=torch.tensor([[True, True], [True, False]]),
    outcome_B=torch.tensor([1.2, 0.2]),
    group_size=2,
    step_lengths_BS=torch.tensor([[2, 4], [3, 0]]),
)
OUTCOME = 0.5 / (math.sqrt(0.5) + 1e-4)  # of the better episode; the sample std of 1.2 and 0.2 is sqrt(0.5)


def test_steps_count_once_or_by_their_tokens() -> None:
    std = math.sqrt((0.4**2 + 0.0 + 0.4**2) / 3)
    assert dual_granularity(INPUTS, beta=0.3).tolist()[0] == pytest.approx([OUTCOME + 0.3 * 0.4 / std, OUTCOME])
    assert dual_granularity(INPUTS, beta=0.3).tolist()[1] == pytest.approx([-OUTCOME - 0.3 * 0.4 / std, 0.0])
    by_tokens = dual_granularity(INPUTS, beta=0.3, statistics="token").tolist()
    assert by_tokens[0] == pytest.approx([1.159274, 0.752233], abs=1e-6), "the released code's"


def test_beta_0_is_the_outcome_alone() -> None:
    assert dual_granularity(INPUTS, beta=0.0).tolist() == [
        pytest.approx([OUTCOME, OUTCOME]),
        pytest.approx([-OUTCOME, 0.0]),
    ]


def test_token_statistics_need_the_lengths_of_steps() -> None:
    with pytest.raises(ValueError, match="needs step_lengths_BS"):
        dual_granularity(replace(INPUTS, step_lengths_BS=None), statistics="token")

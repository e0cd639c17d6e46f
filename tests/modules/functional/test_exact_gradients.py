"""Each estimator's expected gradient beside the exact one, over all groups of episodes of processes that are tiny."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import train
from modules.functional.credit import (
    Credit,
    anchor_return_credit,
    dual_granularity_credit,
    gae_credit,
    grpo_credit,
    reinforce_pp_credit,
    return_to_go_credit,
    rloo_credit,
    turn_returns_credit,
)
from modules.functional.credit_inputs import CreditInputs
from modules.functional.losses import clipped_policy_loss, sequence_policy_loss
from tests.decisions import (
    Loss,
    Process,
    costly_search,
    expected_gradient,
    expected_loss_gradient,
    right_twice,
    stop_or_go,
)


def without_values(inputs: CreditInputs, *, lam: float) -> Tensor:
    """Generalised advantages of a critic that has learnt nothing."""
    return gae_credit(replace(inputs, values_BT=torch.zeros_like(inputs.step_rewards_BS)), lam=lam)


PAGE = Path(train.__file__).parent / "docs" / "credit.md"
PROCESSES = (stop_or_go, right_twice, costly_search)
CREDITS: dict[str, Credit] = {
    "`return_to_go_credit`": return_to_go_credit,
    "`rloo_credit`": rloo_credit,
    "`grpo_credit`, `scale: false`": partial(grpo_credit, scale=False),
    "`grpo_credit`": grpo_credit,
    "`turn_returns_credit`": turn_returns_credit,
    "`anchor_return_credit`": anchor_return_credit,
    "`anchor_return_credit`, `omega: 0`": partial(anchor_return_credit, omega=0.0),
    "`reinforce_pp_credit`": reinforce_pp_credit,
    "`gae_credit`, values exact, `lam: 0.5`": partial(gae_credit, lam=0.5),
    "`gae_credit`, values 0, `lam: 1`": partial(without_values, lam=1.0),
    "`gae_credit`, values 0, `lam: 0.5`": partial(without_values, lam=0.5),
    "`dual_granularity_credit`, `statistics: step`": dual_granularity_credit,
    "`dual_granularity_credit`, `statistics: token`": partial(dual_granularity_credit, statistics="token"),
    "`dual_granularity_credit`, `statistics: step_index`": partial(dual_granularity_credit, statistics="step_index"),
}


def gspo(logps_BT: Tensor, old_logps_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    advantages_B = (advantages_BT * mask_BT).sum(dim=1) / mask_BT.sum(dim=1)
    return sequence_policy_loss(logps_BT, old_logps_BT, advantages_B, mask_BT, clip_low=0.2, clip_high=0.2)


LOSSES: dict[str, Loss] = {
    "`aggregate: group_sum`": partial(clipped_policy_loss, aggregate="group_sum"),
    "`aggregate: token_mean`, `denominator: 3`": partial(clipped_policy_loss, denominator=4 * 3.0),
    "`aggregate: token_mean`": clipped_policy_loss,
    "`aggregate: sequence_mean`": partial(clipped_policy_loss, aggregate="sequence_mean"),
    "`ratio: sequence`": gspo,
}


@cache
def gradients(name: str) -> list[float]:
    """Of a credit function or a loss, in groups of four, in each process."""
    if name in CREDITS:
        return [expected_gradient(process(), CREDITS[name], group_size=4) for process in PROCESSES]
    return [expected_loss_gradient(process(), rloo_credit, LOSSES[name], group_size=4) for process in PROCESSES]


def row(name: str, values: list[float]) -> str:
    return f"| {name} | " + " | ".join(f"{value:.4f}".replace("-0.0000", "0.0000") for value in values) + " |"


def test_the_exact_gradients_are_those_worked_out_by_hand() -> None:
    # 1 + p + p2 at p = 1/2, p2, and p2 - 0.2 (1 + p + p2), each by p, times p (1 - p) = 1/4.
    assert [process().exact_gradient for process in PROCESSES] == pytest.approx([0.5, 0.25, 0.15])


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("theta", [-1.0, 0.7])
@pytest.mark.parametrize("group_size", [2, 3])
def test_without_a_deviation_and_with_a_baseline_of_others_the_gradient_is_exact(process, theta, group_size) -> None:
    made: Process = process(theta)
    assert abs(made.exact_gradient) > 0.01
    exact_values, no_values = partial(gae_credit, lam=0.5), partial(without_values, lam=1.0)
    for credit in (return_to_go_credit, rloo_credit, exact_values, no_values):
        assert expected_gradient(made, credit, group_size=group_size) == pytest.approx(made.exact_gradient)


@pytest.mark.parametrize("group_size", [2, 3])
def test_the_mean_with_itself_shortens_the_gradient(group_size: int) -> None:
    made = right_twice(0.7)
    given = expected_gradient(made, partial(grpo_credit, scale=False), group_size=group_size)
    assert given == pytest.approx(made.exact_gradient * (group_size - 1) / group_size)


def test_dividing_by_the_deviation_is_another_objective() -> None:
    """A question that is seldom answered weighs more than one that is answered now and then."""
    rare, even = right_twice(-2.0), right_twice(0.0)
    ratios = [expected_gradient(one, grpo_credit, group_size=4) / one.exact_gradient for one in (rare, even)]
    assert ratios[0] > 1.04 * ratios[1]


@pytest.mark.parametrize("statistics", ["step", "token", "step_index"])
def test_steps_of_equal_worth_are_compared_away(statistics) -> None:
    credit = partial(dual_granularity_credit, beta=1.0, statistics=statistics)
    assert expected_gradient(stop_or_go(), credit, group_size=3) == 0


def test_a_sum_over_tokens_is_exact_and_a_constant_divides_it() -> None:
    exact = [process().exact_gradient for process in PROCESSES]
    assert gradients("`aggregate: group_sum`") == pytest.approx(exact)
    assert gradients("`aggregate: token_mean`, `denominator: 3`") == pytest.approx([x / 3 for x in exact])


def test_dividing_by_an_episode_s_own_length_is_no_multiple_of_the_exact_gradient() -> None:
    for name in ("`aggregate: token_mean`", "`aggregate: sequence_mean`", "`ratio: sequence`"):
        shares = [given / process().exact_gradient for given, process in zip(gradients(name), PROCESSES, strict=True)]
        assert max(shares) > 1.05 * min(shares), name


def test_the_page_s_tables_are_what_comes_out() -> None:
    text = PAGE.read_text()
    assert row("exact", [process().exact_gradient for process in PROCESSES]) in text
    for name in (*CREDITS, *LOSSES):
        assert row(name, gradients(name)) in text, row(name, gradients(name))

"""Losses against numbers worked out by hand, and what must leave no trace in them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from modules.functional.losses import (
    clipped_policy_loss,
    clipped_tokens,
    clipped_value_loss,
    clipped_values,
    dpo_loss,
    format_weighted_nll,
    k3_divergence,
    likelihood_guard,
    masked_total,
    pairwise_ranking_loss,
    sequence_policy_loss,
    token_weights,
    truncated_weights,
    with_sequence_ratio,
)

NAN = float("nan")


def test_eq_1_counts_control_tokens_more_or_each_by_a_weight_of_its_own() -> None:
    logps, mask = torch.tensor([[-0.2, -0.1, -0.3, -0.05]]), torch.ones(1, 4)
    control = torch.tensor([[False, True, False, True]])
    total = format_weighted_nll(logps, mask, control, control_weight=3.0, reduction="sum")
    assert total == pytest.approx(0.95)
    assert format_weighted_nll(logps, mask, control, control_weight=3.0) == pytest.approx(0.11875)
    assert format_weighted_nll(logps, mask * 0, control, control_weight=3.0) == 0
    weights = torch.tensor([[9.0, 2.0, 9.0, 5.0]])
    assert token_weights(mask, control, weights).tolist() == [[1, 2, 1, 5]]
    loss = format_weighted_nll(logps, mask, control, control_weight=weights)
    assert loss == pytest.approx((0.2 + 2 * 0.1 + 0.3 + 5 * 0.05) / 9)


@pytest.mark.parametrize("hidden", [NAN, -math.inf])
def test_eq_1_looks_at_nothing_outside_its_mask(hidden: float) -> None:
    logps = torch.tensor([[-0.2, hidden]], requires_grad=True)
    loss = format_weighted_nll(logps, torch.tensor([[1, 0]]), torch.tensor([[False, True]]), control_weight=3.0)
    assert loss.item() == pytest.approx(0.2)
    loss.backward()
    assert logps.grad is not None
    assert logps.grad.tolist() == [[-1, 0]]


def test_eq_4() -> None:
    assert pairwise_ranking_loss(torch.tensor([1.2]), torch.tensor([0.4])) == pytest.approx(0.37110, abs=1e-5)
    mean = pairwise_ranking_loss(torch.tensor([1.2, 0.4]), torch.tensor([0.4, 1.2]))
    assert mean == pytest.approx((0.37110 + 1.17110) / 2, abs=1e-5)
    assert pairwise_ranking_loss(torch.tensor([-500.0]), torch.tensor([500.0])) == 1000, "scores far apart"


def clipped(ratios: list[list[float]], advantages: list[list[float]], mask: list[list[int]], **settings) -> Tensor:
    old = torch.full((len(ratios), len(ratios[0])), -1.0)
    return clipped_policy_loss(
        old + torch.tensor(ratios).log(), old, torch.tensor(advantages), torch.tensor(mask), **settings
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 2.0, -2.2),
        (1.5, 2.0, -2.4),  # clipped from above: no more gain
        (0.5, 2.0, -1.0),  # a loss of a good token is never clipped
        (0.5, -2.0, 1.6),  # clipped from below
        (1.5, -2.0, 3.0),  # a gain of a bad token is never clipped
    ],
)
def test_eq_9_clips_what_would_gain(ratio: float, advantage: float, loss: float) -> None:
    assert clipped([[ratio]], [[advantage]], [[1]]) == pytest.approx(loss)


def test_a_token_is_clipped_from_below_or_from_above_where_its_gradient_is_0() -> None:
    ratios, advantages = torch.tensor([0.5, 0.5, 1.5, 1.5, 1.0, 0.5]), torch.tensor([-1.0, 1.0, 1.0, -1.0, 1.0, 0.0])
    logps = ratios.log().requires_grad_()
    low, high = clipped_tokens(logps, torch.zeros(6), advantages, clip_low=0.2, clip_high=0.2)
    assert low.tolist() == [True, False, False, False, False, False]
    assert high.tolist() == [False, False, True, False, False, False]
    clipped_policy_loss(logps[None], torch.zeros(1, 6), advantages[None], torch.ones(1, 6)).backward()
    assert logps.grad is not None
    assert (logps.grad == 0).tolist() == [True, False, True, False, False, True], "the last has no advantage"


def test_the_clips_are_two() -> None:
    assert clipped([[1.5]], [[1.0]], [[1]], clip_high=0.28) == pytest.approx(-1.28)
    assert clipped([[0.5]], [[-1.0]], [[1]], clip_low=0.1, clip_high=0.28) == pytest.approx(0.9)


def test_eq_9_aggregates_over_tokens_sequences_or_rows() -> None:
    ratios, mask = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [[1, 1, 0], [1, 1, 1]]
    advantages = [[1.0, 3.0, 99.0], [-1.0, -1.0, -7.0]]
    assert clipped(ratios, advantages, mask) == pytest.approx(-(4 - 9) / 5)
    assert clipped(ratios, advantages, mask, aggregate="sequence_mean") == pytest.approx(-(2 - 3) / 2)
    assert clipped(ratios, advantages, mask, aggregate="group_sum") == pytest.approx(-(4 - 9) / 2)


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean", "group_sum"])
def test_a_global_denominator_makes_parts_add_up_to_the_whole(aggregate) -> None:
    ratios, mask = [[1.1, 0.9], [1.0, 0.7], [1.3, 1.0]], [[1, 1], [1, 0], [1, 1]]
    advantages = [[1.0, 1.0], [-2.0, 5.0], [0.5, 0.5]]
    count = 5 if aggregate == "token_mean" else 3
    parts = [
        clipped(ratios[rows], advantages[rows], mask[rows], aggregate=aggregate, denominator=count)
        for rows in (slice(0, 1), slice(1, 3))
    ]
    assert sum(parts) == pytest.approx(float(clipped(ratios, advantages, mask, aggregate=aggregate)))


def test_rows_that_train_nothing_are_no_rows() -> None:
    ratios, advantages, mask = [[1.0], [1.0]], [[2.0], [7.0]], [[1], [0]]
    for aggregate in ("token_mean", "sequence_mean", "group_sum"):
        assert clipped(ratios, advantages, mask, aggregate=aggregate) == pytest.approx(-2)
    assert clipped([[1.0]], [[2.0]], [[0]]) == 0


@pytest.mark.parametrize("where", ["logps", "old", "advantages"])
def test_eq_9_looks_at_nothing_outside_its_mask(where: str) -> None:
    tensors = {"logps": torch.zeros(1, 2), "old": torch.zeros(1, 2), "advantages": torch.ones(1, 2)}
    tensors[where][0, 1] = NAN
    tensors["logps"].requires_grad_()
    loss = clipped_policy_loss(*tensors.values(), torch.tensor([[1, 0]]))
    assert loss == -1
    loss.backward()
    gradient = tensors["logps"].grad
    assert gradient is not None
    assert gradient.tolist() == [[-1, 0]]


def test_dpo_by_hand() -> None:
    loss = dpo_loss(*(torch.tensor([x]) for x in (-1.0, -3.0, -2.0, -2.5)), beta=0.5)
    assert loss == pytest.approx(-math.log(1 / (1 + math.exp(-0.5 * (1.0 + 0.5)))))
    assert dpo_loss(*(torch.tensor([-1.0]) for _ in range(4)), beta=0.1) == pytest.approx(math.log(2))
    policy, reference = (torch.tensor([[-2.0], [-3.0]]), torch.tensor([[-2.5], [-2.8]]))
    assert dpo_loss(*policy, *reference, beta=0.3) == pytest.approx(0.59365, abs=1e-5)
    assert dpo_loss(*policy, *torch.zeros(2, 1), beta=0.3) == pytest.approx(0.55436, abs=1e-5)


def test_k3_is_0_at_the_reference_and_positive_beside_it() -> None:
    logps, reference = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-1.0, -0.5, -2.0]])
    expected = [0.0, math.exp(0.5) - 1.5, math.exp(-1.0)]
    assert k3_divergence(logps, reference)[0].tolist() == pytest.approx(expected)


def test_k3_is_an_unbiased_estimate_of_the_divergence() -> None:
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    expected = (policy * (policy / reference).log()).sum()
    assert (policy * k3_divergence(policy.log(), reference.log())).sum() == pytest.approx(float(expected))


def test_a_token_of_another_sampler_weighs_its_ratio_up_to_the_cap() -> None:
    old, other = torch.tensor([[0.5, 1.0, 0.9, NAN]]).log(), torch.tensor([[1.0, 0.5, 0.1, 1.0]]).log()
    weights = truncated_weights(old, other, torch.tensor([[1, 1, 1, 0]]), cap=3.0)
    assert weights[0, :3].tolist() == pytest.approx([0.5, 2.0, 3.0])
    assert weights.isfinite().all()


def test_a_weight_on_the_advantage_is_one_on_the_clipped_loss() -> None:
    ratios, advantages = torch.tensor([0.5, 0.5, 1.5, 1.5, 1.0, 1.1]), torch.tensor([-1.0, 2.0, 1.0, -3.0, 1.0, 0.5])
    weights = torch.tensor([0.3, 2.0, 0.0, 1.7, 1.0, 0.9])
    for ratio, advantage, weight in zip(ratios.tolist(), advantages.tolist(), weights.tolist(), strict=True):
        on_advantage = clipped([[ratio]], [[weight * advantage]], [[1]])
        assert on_advantage == pytest.approx(weight * float(clipped([[ratio]], [[advantage]], [[1]])))


def test_a_masked_total_is_what_a_denominator_divides() -> None:
    terms, mask = torch.tensor([[1.0, 3.0], [5.0, NAN]]), torch.tensor([[1, 1], [1, 0]])
    assert masked_total(terms, mask, "token_mean") == 9
    assert masked_total(terms, mask, "group_sum") == 9
    assert masked_total(terms, mask, "sequence_mean") == 7


def by_sequence(log_ratios: list[list[float]], advantages: list[float], mask: list[list[int]], **settings) -> Tensor:
    old = torch.full((len(log_ratios), len(log_ratios[0])), -1.0)
    clips = {"clip_low": 0.2, "clip_high": 0.28} | settings
    return sequence_policy_loss(
        old + torch.tensor(log_ratios), old, torch.tensor(advantages), torch.tensor(mask), **clips
    )


def test_gspo_has_one_ratio_a_sequence() -> None:
    assert by_sequence([[0.2, -0.1, 0.05]], [1.0], [[1, 1, 1]]) == pytest.approx(-1.05127, abs=1e-5)
    assert by_sequence([[0.2, -0.1, 0.05]], [-2.0], [[1, 1, 1]]) == pytest.approx(2 * 1.05127, abs=1e-5)
    assert by_sequence([[0.2, 9.0, -0.1]], [1.0], [[1, 0, 1]]) == pytest.approx(-math.exp(0.05))


def test_gspo_clips_a_sequence_as_a_whole() -> None:
    tight = {"clip_low": 0.03, "clip_high": 0.04}
    assert by_sequence([[0.2, -0.1, 0.05]], [2.0], [[1, 1, 1]], **tight) == pytest.approx(-2.08)
    assert by_sequence([[-0.2, 0.1, -0.05]], [-2.0], [[1, 1, 1]], **tight) == pytest.approx(1.94)
    assert by_sequence([[-0.2, 0.1, -0.05]], [2.0], [[1, 1, 1]], **tight) == pytest.approx(-2 * math.exp(-0.05))


def test_gspo_is_a_mean_over_sequences_with_a_trained_token() -> None:
    ratios, mask = [[0.1, 0.1], [0.0, 0.0], [-0.1, 9.0]], [[1, 1], [0, 0], [1, 0]]
    loss = by_sequence(ratios, [1.0, NAN, 3.0], mask)
    assert loss == pytest.approx(-(math.exp(0.1) + 3 * math.exp(-0.1)) / 2)
    assert by_sequence(ratios, [1.0, NAN, 3.0], mask, denominator=1.0) == pytest.approx(2 * float(loss))
    assert by_sequence([[0.0]], [5.0], [[0]]) == 0


def test_gspo_s_gradient_is_the_ratio_times_the_mean_of_the_tokens() -> None:
    logps = torch.tensor([[0.2, -0.1, 0.05], [0.5, 0.5, 7.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    sequence_policy_loss(
        logps, torch.zeros(2, 3), torch.tensor([3.0, 1.0]), mask, clip_low=0.2, clip_high=0.2
    ).backward()
    assert logps.grad is not None
    assert logps.grad[0].tolist() == pytest.approx([-math.exp(0.05) / 2] * 3), "3 / 3 tokens / 2 rows"
    assert logps.grad[1].tolist() == [0, 0, 0], "clipped"


def test_with_advantages_of_tokens_each_token_has_its_own_gradient() -> None:
    logps, old = torch.tensor([[0.2, -0.1]], requires_grad=True), torch.zeros(1, 2)
    advantages, mask = torch.tensor([[2.0, -4.0]]), torch.ones(1, 2)
    level = with_sequence_ratio(logps, old, mask)
    assert level[0].tolist() == pytest.approx([0.05, 0.05])
    loss = clipped_policy_loss(level, old, advantages, mask, aggregate="sequence_mean")
    loss.backward()
    assert loss.item() == pytest.approx(math.exp(0.05))
    assert logps.grad is not None
    assert logps.grad[0].tolist() == pytest.approx([-math.exp(0.05), 2 * math.exp(0.05)])


@pytest.mark.parametrize("hidden", [NAN, math.inf])
def test_gspo_looks_at_nothing_outside_its_mask(hidden: float) -> None:
    logps, old = torch.tensor([[0.0, hidden], [hidden, hidden]], requires_grad=True), torch.zeros(2, 2)
    advantages, mask = torch.tensor([2.0, NAN]), torch.tensor([[1, 0], [0, 0]])
    loss = sequence_policy_loss(logps, old, advantages, mask, clip_low=0.2, clip_high=0.2)
    loss.backward()
    assert loss == -2
    assert logps.grad is not None
    assert logps.grad.tolist() == [[-2, 0], [0, 0]]


def test_a_value_that_has_moved_too_far_keeps_the_error_of_the_clip() -> None:
    old, new, returns, mask = (torch.tensor([[number]]) for number in (0.2, 0.5, 1.0, 1.0))
    assert clipped_value_loss(new, old, returns, mask, clip=0.2) == pytest.approx(0.36 / 2)
    assert clipped_value_loss(new, old, returns, mask, clip=0.5) == pytest.approx(0.25 / 2)
    away = torch.tensor([[-0.5]])
    assert clipped_value_loss(away, old, returns, mask, clip=0.2) == pytest.approx(1.5**2 / 2), "the larger error"


def test_clipped_values_have_no_gradient_and_are_counted() -> None:
    """Old values 0, returns 1: within the clip, beyond it towards the return, beyond it away from the return."""
    values = torch.tensor([[0.1, 0.5, -0.5]], requires_grad=True)
    old, returns = torch.zeros(1, 3), torch.ones(1, 3)
    clipped_value_loss(values, old, returns, torch.ones(1, 3), clip=0.2).backward()
    assert values.grad is not None
    assert values.grad[0].tolist() == pytest.approx([-0.9 / 3, 0.0, -1.5 / 3])
    assert clipped_values(values, old, returns, clip=0.2).tolist() == [[False, True, False]]


def test_the_value_loss_is_a_mean_over_its_mask_and_looks_at_nothing_else() -> None:
    values = torch.tensor([[1.0, NAN], [3.0, 8.0]], requires_grad=True)
    old, returns = torch.tensor([[1.0, 0.0], [3.0, NAN]]), torch.tensor([[0.0, 0.0], [1.0, NAN]])
    mask = torch.tensor([[True, False], [True, False]])
    loss = clipped_value_loss(values, old, returns, mask, clip=0.5)
    assert loss.item() == pytest.approx((1 / 2 + 4 / 2) / 2)
    loss.backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0.5, 0.0], [1.0, 0.0]]
    assert clipped_value_loss(values, old, returns, mask, clip=0.5, denominator=10.0).item() == pytest.approx(2.5 / 10)
    assert clipped_value_loss(values, old, returns, mask & False, clip=0.5) == 0


OLD = torch.tensor([[-1.0, -2.0, -1.5]])
FELL, ROSE = torch.tensor([[-1.2, -1.9, -1.5]]), torch.tensor([[-0.9, -1.9, -1.6]])


def guarded(new: Tensor, advantages: float = 0.0, segments: tuple[int, ...] = (4, 4, 4), **settings) -> Tensor:
    mask = settings.pop("mask", torch.ones(1, 3))
    return likelihood_guard(new, OLD, torch.full((1, 3), advantages), mask, torch.tensor([segments]), **settings)


def test_a_good_action_that_lost_likelihood_is_guarded_and_none_that_gained_or_is_bad() -> None:
    assert float(guarded(FELL)) == pytest.approx(0.2 / 3)
    assert float(0.2 * guarded(FELL, advantages=1.0)) == pytest.approx(0.013333, abs=1e-6)
    assert float(guarded(ROSE)) == float(guarded(FELL, advantages=-0.1)) == float(guarded(OLD)) == 0
    assert float(guarded(ROSE, segments=(-1, 7, 7))) == 0
    assert float(guarded(ROSE, segments=(7, 7, 9))) == pytest.approx(0.1 / 3), "the last token is an action of its own"


def test_the_guard_s_gradient_lifts_the_tokens_that_fell_and_its_mask_hides_the_rest() -> None:
    new = FELL.clone().requires_grad_()
    guarded(new, denominator=1.0).backward()
    assert new.grad is not None
    assert new.grad.tolist() == [[-1, 0, -1]], "the last has lost nothing yet"
    hidden = torch.tensor([[-1.2, float("nan"), -1.5]])
    assert float(guarded(hidden, mask=torch.tensor([[True, False, True]]))) == pytest.approx(0.1)

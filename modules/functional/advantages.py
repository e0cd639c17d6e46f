"""Advantages from rewards of steps and outcomes, by comparison within the group of one question.

Rows come group by group: the G episodes of a question side by side. NaN is a reward that is not known: it is left out
of every statistic and its advantage is 0. A group without spread has advantage 0 too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from modules.functional.normalization import NO_SPREAD, less_others, normalize_rows
from modules.functional.process_advantages import Statistics, process_advantages


def group_normalize(values_B: Tensor, group_size: int, *, eps: float = 1e-4) -> Tensor:
    """(value - mean) / (sample std + eps) within each group. Source: ProRAG Eq 7 for outcomes, after GRPO.

    Args:
        values_B: `[B]`, B a multiple of `group_size`; NaN is left out.

    Returns:
        `[B]`; 0 where the group's values lie within 1e-6, or fewer than two are known.
    """
    values_QG = _by_question(values_B, group_size)
    return normalize_rows(values_QG, values_QG.isfinite().to(values_QG.dtype), correction=1, eps=eps).reshape(-1)


def grpo(outcome_B: Tensor, *, group_size: int, scale: bool = True, eps: float = 1e-6) -> Tensor:
    """Value minus the group's mean, divided by the group's sample std + eps where `scale`. Source: GRPO, Dr. GRPO.

    The mean holds the episode's own value, so without scale the gradient is the exact one times (n - 1)/n, n the known
    values of the group; dividing by the std favours questions that are nearly always or nearly never answered.
    GRPO: arXiv 2402.03300; without scale, Dr. GRPO: arXiv 2503.20783.

    Args:
        outcome_B: `[B]`, B a multiple of `group_size`; NaN is left out.

    Returns:
        `[B]`; 0 where the group's values lie within 1e-6, or fewer than two are known.
    """
    values_QG = _by_question(outcome_B, group_size)
    known_QG = values_QG.isfinite().to(values_QG.dtype)
    return normalize_rows(values_QG, known_QG, correction=1, eps=eps, scale=scale).reshape(-1)


def leave_one_out(outcome_B: Tensor, *, group_size: int) -> Tensor:
    """Value minus the mean of the group's other known values: an unbiased baseline. Source: RLOO, arXiv 2402.14740.

    Args:
        outcome_B: `[B]`, B a multiple of `group_size`; NaN is left out.

    Returns:
        `[B]`; 0 where the group's values lie within 1e-6, or fewer than two are known.
    """
    values_QG = _by_question(outcome_B, group_size)
    return less_others(values_QG, values_QG.isfinite()).reshape(-1)


def return_to_go(step_rewards_BS: Tensor, step_mask_BS: Tensor, *, group_size: int) -> Tensor:
    """Reward-to-go of each step, minus the mean reward-to-go of the group's other episodes at the same step.

    A step is compared with steps of the same number alone; an episode that has ended gets 0 from then on. The baseline
    does not depend on the episode's own actions, so the gradient is exact. Source: the policy gradient theorem with
    returns to go (Sutton et al. 2000) and the baseline of RLOO (arXiv 2402.14740).

    Args:
        step_rewards_BS: `[B, S]`, B a multiple of `group_size`; an episode with a NaN in its steps is left out.
        step_mask_BS: `[B, S]`, true where an episode has that step.

    Returns:
        `[B, S]`; 0 outside the mask, and at steps where the returns of the group's known episodes lie within 1e-6.
    """
    rewards_BS = _floating(step_rewards_BS).masked_fill(~step_mask_BS.bool(), 0.0)
    known_BS = rewards_BS.isfinite().all(dim=1, keepdim=True).expand_as(rewards_BS)
    returns_BS = rewards_BS.masked_fill(~known_BS, 0.0).flip(1).cumsum(dim=1).flip(1)
    returns_NG, known_NG = (_by_place(values_BS, group_size) for values_BS in (returns_BS, known_BS))
    advantages_BS = _by_episode(less_others(returns_NG, known_NG), *rewards_BS.shape)
    return advantages_BS.masked_fill(~step_mask_BS.bool(), 0.0)


def batch_normalize(
    values: Tensor,
    known: Tensor,
    *,
    sum_over_ranks: Callable[[Tensor], Tensor],
    eps: float = 1e-8,
    counted: Tensor | None = None,
    correction: int = 0,
) -> Tensor:
    """(value - mean) / (std + eps) over all known values of all ranks. Source: REINFORCE++, arXiv 2501.03262.

    Count, sum and sum of squares are added up in float64, in one call of `sum_over_ranks`.

    Args:
        values: of any shape.
        known: bool of that shape; what is not known is left out.
        counted: bool of that shape, which values mean and std are of; None: all that are known.
        correction: 1 for the sample std, 0 for the population's.

    Returns:
        Of that shape; 0 where not known, and everywhere if the std is at most 1e-6.
    """
    values_N = values[known if counted is None else counted].double()
    sums_3 = torch.stack([torch.tensor(float(len(values_N))).double(), values_N.sum(), (values_N**2).sum()])
    count, total, squares = sum_over_ranks(sums_3)
    mean = total / count.clamp(min=1)
    variance = (squares / count.clamp(min=1) - mean**2).clamp(min=0)
    std = (variance * count / (count - correction).clamp(min=1)).sqrt()
    if std <= NO_SPREAD:
        return torch.zeros_like(values)
    return ((values - mean) / (std + eps)).masked_fill(~known, 0.0).to(values.dtype)


def scaled_rewards(
    rewards_BR: Tensor,
    weights_R: Tensor,
    *,
    group_size: int,
    over_batch: bool = True,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Tensor:
    """Each reward normalised within its group, their weighted sum, normalised over the batch. Source: GDPO.

    A sum of rewards that is normalised afterwards weighs them by their spread; here the weights alone decide. Both
    stds are sample stds + 1e-4, that of the batch over all ranks. Source: arXiv 2601.05242.

    Args:
        rewards_BR: `[B, R]`, R rewards of each episode, B a multiple of `group_size`; an episode that lacks one (NaN)
            is left out of all statistics. A reward of weight 0 is not looked at.
        weights_R: `[R]`.
        over_batch: false leaves the sum as it is: where one reward alone has a spread, in a group or in all groups, it
            is as large as its weight.

    Returns:
        `[B]`; a reward without spread in a group adds 0 there, a group without any spread has 0.
    """
    weights_R = torch.as_tensor(weights_R)
    rewards_BR, weights_R = _floating(rewards_BR)[:, weights_R != 0], weights_R[weights_R != 0]
    if not rewards_BR.numel():
        return rewards_BR.new_zeros(len(rewards_BR))
    known_B = rewards_BR.isfinite().all(dim=1)
    rewards_BR = rewards_BR.masked_fill(~known_B[:, None], float("nan"))
    normal_BR = torch.stack([group_normalize(values_B, group_size) for values_B in rewards_BR.T], dim=1)
    spread_Q1 = (normal_BR != 0).reshape(len(normal_BR) // group_size, -1).any(dim=1, keepdim=True)
    total_B = (normal_BR * weights_R).sum(dim=1).to(rewards_BR.dtype)
    if not over_batch:
        return total_B
    scaled_B = batch_normalize(total_B, known_B, sum_over_ranks=sum_over_ranks, eps=1e-4, correction=1)
    return scaled_B * spread_Q1.expand(-1, group_size).flatten()


def dual_granularity(
    step_rewards_BS: Tensor,
    step_mask_BS: Tensor,
    outcome_B: Tensor,
    *,
    group_size: int,
    beta: float = 0.3,
    statistics: Statistics = "step",
    step_lengths_BS: Tensor | None = None,
    step_kinds_BS: Tensor | None = None,
    step_valid_BS: Tensor | None = None,
    scale: bool = True,
    outcome_advantages_B: Tensor | None = None,
) -> Tensor:
    """Outcome advantage plus `beta` times process advantage, one a step. Source: ProRAG Eqs 7 and 8.

    The settings of the process advantage are explained at `process_advantages`.

    Args:
        step_rewards_BS: `[B, S]`; NaN is left out.
        step_mask_BS: `[B, S]`, true where an episode has that step.
        outcome_B: `[B]`; an episode whose outcome is NaN gets advantage 0 in all its steps.
        outcome_advantages_B: `[B]`; None: the outcome, normalised within its group.

    Returns:
        `[B, S]`; 0 outside the mask.
    """
    process_BS = process_advantages(
        step_rewards_BS,
        step_mask_BS.bool() & outcome_B.isfinite()[:, None],
        group_size=group_size,
        statistics=statistics,
        step_lengths_BS=step_lengths_BS,
        step_kinds_BS=step_kinds_BS,
        step_valid_BS=step_valid_BS,
        scale=scale,
    )
    return outcome_and_process(
        outcome_B, process_BS, step_mask_BS, outcome_advantages_B, group_size=group_size, beta=beta
    )


def outcome_and_process(
    outcome_B: Tensor,
    process_BS: Tensor,
    step_mask_BS: Tensor,
    outcome_advantages_B: Tensor | None = None,
    *,
    group_size: int,
    beta: float,
) -> Tensor:
    """`[B, S]`: the normalised outcome plus `beta` times a process advantage. Source: ProRAG Eq 8.

    0 outside the mask and in an episode whose outcome is NaN.
    """
    if outcome_advantages_B is None:
        outcome_advantages_B = group_normalize(outcome_B, group_size)
    advantages_BS = outcome_advantages_B[:, None] + beta * process_BS
    return advantages_BS.masked_fill(~(step_mask_BS.bool() & outcome_B.isfinite()[:, None]), 0.0)


def _by_question(values_B: Tensor, group_size: int) -> Tensor:
    """`[B]` -> `[Q, G]`, a row for each question; whole numbers become float32."""
    return _floating(values_B).reshape(-1, group_size)


def _floating(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.float()


def _by_place(values_BS: Tensor, group_size: int) -> Tensor:
    """`[Q*G, S]` as `[Q*S, G]`: a row holds the steps of a question's G episodes at one place."""
    B, S = values_BS.shape
    return values_BS.reshape(B // group_size, group_size, S).transpose(1, 2).flatten(0, 1)


def _by_episode(values_NG: Tensor, B: int, S: int) -> Tensor:
    """The inverse of `_by_place`: `[Q*S, G]` as `[B, S]`, B = Q*G."""
    G = values_NG.shape[1]
    return values_NG.reshape(B // G, S, G).transpose(1, 2).flatten(0, 1)

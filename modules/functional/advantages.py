"""Advantages from rewards of steps and outcomes, by comparison within the group of one question.

Rows come group by group: the G episodes of a question side by side. NaN is a reward that is not known: it is left out
of every statistic and its advantage is 0. A group without spread has advantage 0 too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Statistics = Literal["step", "token", "step_index"]
_NO_SPREAD = 1e-6


def group_normalize(values_B: Tensor, group_size: int, *, eps: float = 1e-4) -> Tensor:
    """(value - mean) / (sample std + eps) within each group. Source: ProRAG Eq 7 for outcomes, after GRPO.

    Args:
        values_B: `[B]`, B a multiple of `group_size`; NaN is left out.

    Returns:
        `[B]`; 0 where the group's values lie within 1e-6, or fewer than two are known.
    """
    values_QG = values_B.reshape(-1, group_size)
    return _normalize(values_QG, values_QG.isfinite().to(values_QG.dtype), correction=1, eps=eps).reshape(-1)


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
    if scale:
        return group_normalize(outcome_B, group_size, eps=eps)
    values_QG = outcome_B.reshape(-1, group_size)
    known_QG = values_QG.isfinite()
    mean_Q1 = values_QG.masked_fill(~known_QG, 0.0).sum(dim=1, keepdim=True) / known_QG.sum(1, keepdim=True).clamp(1)
    return _comparison(values_QG - mean_Q1, values_QG, known_QG).reshape(-1)


def leave_one_out(outcome_B: Tensor, *, group_size: int) -> Tensor:
    """Value minus the mean of the group's other known values: an unbiased baseline. Source: RLOO, arXiv 2402.14740.

    Args:
        outcome_B: `[B]`, B a multiple of `group_size`; NaN is left out.

    Returns:
        `[B]`; 0 where the group's values lie within 1e-6, or fewer than two are known.
    """
    values_QG = outcome_B.reshape(-1, group_size)
    known_QG = values_QG.isfinite()
    return _comparison(values_QG - _mean_of_others(values_QG, known_QG), values_QG, known_QG).reshape(-1)


def return_to_go(step_rewards_BS: Tensor, step_mask_BS: Tensor, *, group_size: int) -> Tensor:
    """What an episode gets from a step on, minus the mean of what the group's others get from their same step on.

    A step is compared with steps of the same number alone; an episode that has ended gets 0 from then on. The baseline
    does not depend on the episode's own actions, so the gradient is exact. Source: the policy gradient theorem with
    returns to go (Sutton et al. 2000) and the baseline of RLOO (arXiv 2402.14740).

    Args:
        step_rewards_BS: `[B, S]`, B a multiple of `group_size`; an episode with a NaN in its steps is left out.
        step_mask_BS: `[B, S]`, true where an episode has that step.

    Returns:
        `[B, S]`; 0 outside the mask, and at steps where the returns of the group's known episodes lie within 1e-6.
    """
    rewards_BS = step_rewards_BS.masked_fill(~step_mask_BS.bool(), 0.0)
    known_BS = rewards_BS.isfinite().all(dim=1, keepdim=True).expand_as(rewards_BS)
    returns_BS = rewards_BS.masked_fill(~known_BS, 0.0).flip(1).cumsum(dim=1).flip(1)
    returns_NG, known_NG = (_by_place(values_BS, group_size) for values_BS in (returns_BS, known_BS))
    differences_NG = returns_NG - _mean_of_others(returns_NG, known_NG)
    advantages_BS = _by_episode(_comparison(differences_NG, returns_NG, known_NG), rewards_BS.shape[1])
    return advantages_BS.masked_fill(~step_mask_BS.bool(), 0.0)


def batch_normalize(
    values: Tensor,
    known: Tensor,
    *,
    sum_over_ranks: Callable[[Tensor], Tensor],
    eps: float = 1e-8,
    counted: Tensor | None = None,
) -> Tensor:
    """(value - mean) / (std + eps) over all known values of all ranks. Source: REINFORCE++, arXiv 2501.03262.

    Count, sum and sum of squares are added up in float64, in one call of `sum_over_ranks`.

    Args:
        values: of any shape.
        known: bool of that shape; what is not known is left out.
        counted: bool of that shape, which values mean and std are of; None: all that are known.

    Returns:
        Of that shape; 0 where not known, and everywhere if the std is at most 1e-6.
    """
    values_N = values[known if counted is None else counted].double()
    sums_3 = torch.stack([torch.tensor(float(len(values_N))).double(), values_N.sum(), (values_N**2).sum()])
    count, total, squares = sum_over_ranks(sums_3)
    mean = total / count.clamp(min=1)
    std = (squares / count.clamp(min=1) - mean**2).clamp(min=0).sqrt()
    if std <= _NO_SPREAD:
        return torch.zeros_like(values)
    return ((values - mean) / (std + eps)).masked_fill(~known, 0.0).to(values.dtype)


def dual_granularity(
    step_rewards_BS: Tensor,
    step_mask_BS: Tensor,
    outcome_B: Tensor,
    *,
    group_size: int,
    beta: float = 0.3,
    statistics: Statistics = "step",
    step_lengths_BS: Tensor | None = None,
) -> Tensor:
    """Outcome advantage plus `beta` times process advantage, one a step. Source: ProRAG Eqs 7 and 8.

    Process rewards are normalised by mean and population std over all steps of a question's G episodes: each step
    counted once (`step`), by its policy tokens (`token`, as the released code does), or separately for each position
    in the episode (`step_index`).

    Args:
        step_rewards_BS: `[B, S]`; NaN is left out.
        step_mask_BS: `[B, S]`, true where an episode has that step.
        outcome_B: `[B]`; an episode whose outcome is NaN gets advantage 0 in all its steps.
        step_lengths_BS: `[B, S]` policy tokens of each step; needed by `token`.

    Returns:
        `[B, S]`; 0 outside the mask.

    Raises:
        ValueError: `token` without `step_lengths_BS`.
    """
    groups = len(outcome_B) // group_size
    known_BS = step_mask_BS.bool() & step_rewards_BS.isfinite() & outcome_B.isfinite()[:, None]
    weights_BS = known_BS.to(step_rewards_BS.dtype)
    if statistics == "token":
        if step_lengths_BS is None:
            raise ValueError("statistics 'token' needs step_lengths_BS")
        weights_BS = weights_BS * step_lengths_BS
    S = step_rewards_BS.shape[1]
    if statistics == "step_index":  # one set a (question, place in the episode)
        values, weights = (_by_place(x, group_size) for x in (step_rewards_BS, weights_BS))
        process_BS = _by_episode(_normalize(values, weights, correction=0, eps=0.0), S)
    else:
        values, weights = (x.reshape(groups, group_size * S) for x in (step_rewards_BS, weights_BS))
        process_BS = _normalize(values, weights, correction=0, eps=0.0).reshape(-1, S)
    outcome_BS = group_normalize(outcome_B, group_size)[:, None].expand_as(process_BS)
    advantages_BS = outcome_BS + beta * process_BS
    return advantages_BS.masked_fill(~(step_mask_BS.bool() & outcome_B.isfinite()[:, None]), 0.0)


def _normalize(values: Tensor, weights: Tensor, *, correction: int, eps: float) -> Tensor:
    """Normalise each row `[N, M]` by its weighted mean and std; 0 where a weight is 0 or there is no spread."""
    known = weights > 0
    values = values.masked_fill(~known, 0.0)
    total = weights.sum(dim=1, keepdim=True)
    mean = (weights * values).sum(dim=1, keepdim=True) / total.clamp(min=1e-12)
    variance = (weights * (values - mean) ** 2).sum(dim=1, keepdim=True) / (total - correction).clamp(min=1e-12)
    flat = no_spread(values, known)[:, None]
    return ((values - mean) / (variance.sqrt() + eps).clamp(min=1e-12)).masked_fill(flat | ~known, 0.0)


def _comparison(differences_NG: Tensor, values_NG: Tensor, known_NG: Tensor) -> Tensor:
    """The differences of known values, exactly 0 in groups without spread, whatever the rounding of their mean."""
    flat_N1 = no_spread(values_NG, known_NG)[:, None]
    return differences_NG.masked_fill(flat_N1 | ~known_NG, 0.0)


def _mean_of_others(values_NG: Tensor, known_NG: Tensor) -> Tensor:
    """For each value of a group `[N, G]` the mean of the group's other known ones."""
    values_NG = values_NG.masked_fill(~known_NG, 0.0)
    others_N1 = (known_NG.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    return (values_NG.sum(dim=1, keepdim=True) - values_NG) / others_N1


def _by_place(values_BS: Tensor, group_size: int) -> Tensor:
    """`[Q*G, S]` as `[Q*S, G]`: a row holds the steps of a question's G episodes at one place."""
    S = values_BS.shape[1]
    return values_BS.reshape(-1, group_size, S).transpose(1, 2).reshape(-1, group_size)


def _by_episode(values_NG: Tensor, S: int) -> Tensor:
    """The inverse of `_by_place`: `[Q*S, G]` as `[Q*G, S]`."""
    G = values_NG.shape[1]
    return values_NG.reshape(-1, S, G).transpose(1, 2).reshape(-1, S)


def no_spread(values: Tensor, known: Tensor) -> Tensor:
    """Whether the known values of each row `[N, M]` lie within 1e-6 or are fewer than two, `[N]` bool."""
    low = values.masked_fill(~known, float("inf")).amin(dim=1)
    high = values.masked_fill(~known, float("-inf")).amax(dim=1)
    return (high - low <= _NO_SPREAD) | (known.sum(dim=1) < 2)

"""Advantages from rewards of steps and outcomes, normalised within the group of one question.

Rows come group by group: the G episodes of a question side by side. NaN is a reward that is not known: it is left out
of every statistic and its advantage is 0. A group without spread has advantage 0 too.
"""

from __future__ import annotations

from typing import Literal

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
    if statistics == "step_index":  # [Q, G, S] -> one set a (question, position)
        values, weights = (x.reshape(groups, group_size, S).transpose(1, 2).reshape(groups * S, group_size)
                           for x in (step_rewards_BS, weights_BS))  # fmt: skip
        normal = _normalize(values, weights, correction=0, eps=0.0)
        process_BS = normal.reshape(groups, S, group_size).transpose(1, 2).reshape(-1, S)
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


def no_spread(values: Tensor, known: Tensor) -> Tensor:
    """Whether the known values of each row `[N, M]` lie within 1e-6 or are fewer than two, `[N]` bool."""
    low = values.masked_fill(~known, float("inf")).amin(dim=1)
    high = values.masked_fill(~known, float("-inf")).amax(dim=1)
    return (high - low <= _NO_SPREAD) | (known.sum(dim=1) < 2)

"""Discounted returns of steps, normalised over a question's steps: turn returns (IGPO) and anchor returns (GiGPO).

Rows come group by group: the G episodes of a question side by side. Steps outside the mask are bridged, and have 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from modules.functional.normalization import normalize_rows
from modules.functional.process_advantages import by_set, numbered

Normalise = Literal["joint", "separate"]


def turn_returns(
    rewards_BS: Tensor,
    mask_BS: Tensor,
    *,
    group_size: int,
    gamma: float = 1.0,
    normalise: Normalise = "joint",
    outcome_B: Tensor | None = None,
) -> Tensor:
    """Normalised rewards of turns, summed from each turn on. Source: IGPO (arXiv 2510.14967), Eqs 6 and 7.

    `joint` adds the outcome to the reward of the last step and normalises all rewards of the question's steps at once.
    `separate` normalises gains and outcomes independently, and then adds the outcome's value to that of the last step.
    Answers gain nothing: mark them by NaN. Where the last steps of all episodes of a question have 0, or the outcome
    itself, they are taken for the answers and left out of the statistics of gains.

    Args:
        rewards_BS: `[B, S]`, B a multiple of `group_size`; NaN is left out, and adds nothing to the sums.
        mask_BS: `[B, S]`, true where an episode has that step.
        gamma: discount a step.
        outcome_B: `[B]`; None where the rewards hold it. An episode whose outcome is NaN has 0 in all its steps; its
            gains stay in the statistics.

    Returns:
        `[B, S]`; the std is the population's. Values that lie within 1e-6, or one alone, add 0.
    """
    mask_BS = mask_BS.bool()
    rewards_BS = _floating(rewards_BS).masked_fill(~mask_BS, 0.0)
    if outcome_B is None:
        normal_BS = _over_groups(rewards_BS, mask_BS, group_size)
        return discounted_returns(normal_BS, mask_BS, gamma=gamma)
    last_BS = last_steps(mask_BS)
    if normalise == "joint":
        with_outcome_BS = torch.where(last_BS, rewards_BS.nan_to_num(nan=0.0) + outcome_B[:, None], rewards_BS)
        normal_BS = _over_groups(with_outcome_BS, mask_BS, group_size)
    else:
        nothing_BS = (rewards_BS == 0) | (rewards_BS == outcome_B[:, None])
        answers_Q11 = (nothing_BS | ~last_BS).reshape(-1, group_size, mask_BS.shape[1]).all(dim=(1, 2))[:, None, None]
        gained_BS = mask_BS & ~(last_BS.view(-1, group_size, mask_BS.shape[1]) & answers_Q11).view_as(last_BS)
        outcomes_B1 = _over_groups(outcome_B[:, None], mask_BS.any(dim=1, keepdim=True), group_size)
        normal_BS = _over_groups(rewards_BS, gained_BS, group_size) + last_BS * outcomes_B1
    return discounted_returns(normal_BS, mask_BS, gamma=gamma).masked_fill(~outcome_B.isfinite()[:, None], 0.0)


def anchor_return(
    rewards_BS: Tensor,
    mask_BS: Tensor,
    states_BS: Tensor | Sequence[Sequence[Hashable]],
    *,
    group_size: int,
    gamma: float = 0.95,
    omega: float = 1.0,
    scale: bool = False,
    steps_weigh: bool = False,
) -> Tensor:
    """The return of the episode, plus `omega` times the discounted return among the steps from the same state.

    Each is taken less the mean of what it is compared with, and with `scale` divided by the sample std + 1e-6.
    Source: GiGPO, arXiv 2505.10978, Eqs 3 to 8; without `scale` its F_norm is 1.

    Args:
        rewards_BS: `[B, S]`, B a multiple of `group_size`; an episode with a NaN in its steps is left out, 0.
        mask_BS: `[B, S]`, true where an episode has that step.
        states_BS: `[B, S]` numbers or names of the states that steps begin in, compared within a question.
        gamma: discount a step of the returns that are compared within a state; that of an episode has none.
        steps_weigh: an episode counts in the statistics of episodes once a step, as in the released code.

    Returns:
        `[B, S]`; a step that is alone in its state has the episode's part alone.
    """
    mask_BS = mask_BS.bool()
    rewards_BS = _floating(rewards_BS).masked_fill(~mask_BS, 0.0)
    known_B1 = rewards_BS.isfinite().all(dim=1, keepdim=True)
    rewards_BS, known_BS = rewards_BS.masked_fill(~known_B1, 0.0), mask_BS & known_B1
    counted_BS = known_BS.to(rewards_BS.dtype)
    compared = partial(normalize_rows, correction=1, eps=1e-6, scale=scale)
    steps_QG = counted_BS.sum(dim=1).reshape(-1, group_size)
    weights_QG = steps_QG if steps_weigh else (steps_QG > 0).to(steps_QG.dtype)
    episodes_B = compared(rewards_BS.sum(dim=1).reshape(-1, group_size), weights_QG).flatten()
    names_BS = [[int(state) for state in row] for row in states_BS] if isinstance(states_BS, Tensor) else states_BS
    sets_BS = numbered(names_BS, group_size).view(mask_BS.shape)
    steps_BS = by_set(compared, discounted_returns(rewards_BS, mask_BS, gamma=gamma), counted_BS, sets_BS, group_size)
    return (episodes_B[:, None] + omega * steps_BS).masked_fill(~known_BS, 0.0)


def discounted_returns(rewards_BS: Tensor, mask_BS: Tensor, *, gamma: float) -> Tensor:
    """`[B, S]`: rewards from each step on, discounted `gamma` a step of the mask; 0 outside it."""
    returns_BS, next_B = torch.zeros_like(rewards_BS), rewards_BS.new_zeros(len(rewards_BS))
    for s in reversed(range(rewards_BS.shape[1])):
        next_B = torch.where(mask_BS[:, s], rewards_BS[:, s] + gamma * next_B, next_B)
        returns_BS[:, s] = next_B
    return returns_BS.masked_fill(~mask_BS, 0.0)


def last_steps(mask_BS: Tensor) -> Tensor:
    """`[B, S]` bool: the last step of each episode that has one."""
    return mask_BS & (mask_BS.flip(1).cumsum(dim=1).flip(1) == 1)


def _over_groups(values_BS: Tensor, mask_BS: Tensor, group_size: int) -> Tensor:
    """`[B, S]`: (value - mean) / (population std + 1e-8) over all known values of a question's episodes."""
    rows_QN, known_QN = (x.reshape(len(x) // group_size, -1) for x in (values_BS, mask_BS & values_BS.isfinite()))
    if not rows_QN.numel():
        return torch.zeros_like(values_BS)
    return normalize_rows(rows_QN, known_QN.to(rows_QN.dtype), correction=0, eps=1e-8).reshape(values_BS.shape)


def _floating(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.float()

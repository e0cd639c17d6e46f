"""Generalised advantage estimation over the tokens that a policy sampled (Schulman et al. 2016, arXiv 1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of policy tokens, as if no other tokens stood between them. Source: Eqs 11 and 16.

    A passage between two policy tokens is no state that the policy acted in: the token before it is followed by the
    token after it. Nothing follows the last policy token.

    Args:
        rewards_BT: `[B, T]`, the reward that each policy token brings.
        values_BT: `[B, T]`, the value of the state that each policy token was sampled in.
        mask_BT: `[B, T]`, true on policy tokens; nothing else is looked at, not even a NaN.
        gamma: discount a policy token.
        lam: 1 gives returns less values, 0 the error of one step.

    Returns:
        Advantages and returns (advantages plus values), both `[B, T]` and 0 outside the mask.
    """
    mask_BT = mask_BT.bool()
    dtype = torch.promote_types(rewards_BT.dtype, values_BT.dtype)
    dtype = dtype if dtype.is_floating_point else torch.float32
    rewards_BT, values_BT = rewards_BT.to(dtype), values_BT.to(dtype)
    rewards_BT, values_BT = rewards_BT.masked_fill(~mask_BT, 0), values_BT.masked_fill(~mask_BT, 0)
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = next_advantage_B = values_BT.new_zeros(len(values_BT))  # of the policy token that comes next
    for t in reversed(range(values_BT.shape[1])):
        mask_B, value_B = mask_BT[:, t], values_BT[:, t]
        advantage_B = rewards_BT[:, t] + gamma * next_value_B - value_B + gamma * lam * next_advantage_B
        advantages_BT[:, t] = advantage_B.masked_fill(~mask_B, 0)
        next_value_B = torch.where(mask_B, value_B, next_value_B)
        next_advantage_B = torch.where(mask_B, advantage_B, next_advantage_B)
    return advantages_BT, advantages_BT + values_BT


def token_rewards(step_rewards_BS: Tensor, step_lengths_BS: Tensor, outcome_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Rewards of steps and outcomes on the policy tokens that earned them, `[B, T]`.

    A step's reward lies on the last policy token of the step, the outcome on the last of the episode. A step without
    any, such as one that a frozen agent wrote, adds its reward to the policy token before it, which led to it.

    Args:
        step_rewards_BS: `[B, S]`.
        step_lengths_BS: `[B, S]`, sampled tokens of each step, those of frozen agents included.
        outcome_B: `[B]`.
        mask_BT: `[B, T]`, true on policy tokens among the sampled tokens of the steps, in their order.
    """
    places_T = torch.arange(mask_BT.shape[1]).expand_as(mask_BT)
    last_BT = torch.where(mask_BT, places_T, -1).cummax(dim=1).values  # the last policy token up to each token
    last_BT = torch.nn.functional.pad(last_BT, (1, 0), value=-1)  # before the first token there is none
    ends_BS = step_lengths_BS.cumsum(dim=1)
    rewards = torch.cat([step_rewards_BS, outcome_B[:, None]], dim=1)
    places = torch.cat([last_BT.gather(1, ends_BS), last_BT[:, -1:]], dim=1)
    rewards_BT = torch.zeros(last_BT.shape, dtype=rewards.dtype).scatter_add(1, places + 1, rewards)
    return rewards_BT[:, 1:]  # what no policy token led to is in the first column


def value_sums(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sums for `explained_variance`, `[6]` float64, to be added up over ranks.

    Returns:
        The count of policy tokens, and the sums of values V, returns R, R^2, R - V and (R - V)^2.
    """
    values_N, returns_N = values_BT[mask_BT].double(), returns_BT[mask_BT].double()
    errors_N = returns_N - values_N
    sums = (values_N.sum(), returns_N.sum(), (returns_N**2).sum(), errors_N.sum(), (errors_N**2).sum())
    return torch.stack([mask_BT.sum().double(), *sums])


def explained_variance(sums_6: Tensor) -> Tensor:
    """1 - Var(R - V) / Var(R): 1 where the critic knows every return, 0 where it knows their mean alone.

    Args:
        sums_6: of `value_sums`.

    Returns:
        A scalar; NaN where the returns do not vary.
    """
    count, _, total, squares, error, squared_errors = sums_6
    variance, left = squares / count - (total / count) ** 2, squared_errors / count - (error / count) ** 2
    return torch.where(variance > 1e-12, 1 - left / variance, torch.nan)

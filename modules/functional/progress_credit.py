"""Progress advantages: discounted reward-to-go of a step, less the mean of other episodes from the same progress on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from modules.functional.returns import discounted_returns, last_steps

LEVELS, RESOLUTION = 1000, 100  # progress is told apart by 0.01, up to 10


def progress_advantages(
    rewards_BS: Tensor,
    mask_BS: Tensor,
    *,
    group_size: int,
    prior: float = 2.0,
    gamma: float = 1.0,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Tensor:
    """Reward-to-go of each step, less the mean that other episodes got from the same progress on.

    The progress before a step is the sum of the positive rewards of earlier steps. The mean is over the question's
    other episodes that had this progress, each once, from its first step there. The mean of all other episodes of the
    iteration that had it counts as `prior` more. The baseline holds nothing of the episode itself, so without a
    discount the gradient is exact, whatever the lengths. An early answer is blamed for what others still get from
    there, also where all episodes of its question answer.
    Sources: baselines of other episodes, RLOO (arXiv 2402.14740); comparison within states, GiGPO (arXiv 2505.10978).

    Args:
        rewards_BS: `[B, S]`, B a multiple of `group_size`, the outcome on the last step; an episode with a NaN in its
            steps is left out.
        mask_BS: `[B, S]`, true where an episode has that step.
        prior: number of episodes that the iteration's mean counts as; 0 compares within the question alone.
        gamma: discount a step; below 1 a detour costs something, for what comes after it comes later.

    Returns:
        `[B, S]`; 0 outside the mask. Where no other episode had the progress, the baseline is 0.
    """
    mask_BS = mask_BS.bool()
    rewards_BS = rewards_BS.masked_fill(~mask_BS, 0.0).double()
    known_BS = mask_BS & rewards_BS.isfinite().all(dim=1, keepdim=True)
    rewards_BS = rewards_BS.masked_fill(~known_BS, 0.0)
    returns_BS = discounted_returns(rewards_BS, known_BS, gamma=gamma)
    gained_BS = rewards_BS.clamp(min=0)
    levels_BS = ((gained_BS.cumsum(dim=1) - gained_BS) * RESOLUTION).round().long().clamp(max=LEVELS - 1)
    first_2BL = torch.zeros(2, len(rewards_BS), LEVELS, dtype=torch.float64)  # returns of first steps, and their number
    for s in reversed(range(rewards_BS.shape[1])):
        here_N = known_BS[:, s].nonzero().flatten()
        first_2BL[0, here_N, levels_BS[here_N, s]] = returns_BS[here_N, s]
        first_2BL[1, here_N, levels_BS[here_N, s]] = 1.0
    groups_2QL = first_2BL.view(2, len(rewards_BS) // group_size, group_size, LEVELS).sum(dim=2)
    others_2BL = groups_2QL.repeat_interleave(group_size, dim=1) - first_2BL
    returns_BL, counts_BL = sum_over_ranks(first_2BL.sum(dim=1))[:, None] - first_2BL
    means_BL = returns_BL / counts_BL.clamp(min=1)
    baselines_BL = (others_2BL[0] + prior * means_BL) / (others_2BL[1] + prior).clamp(min=1e-12)
    advantages_BS = returns_BS - baselines_BL.gather(1, levels_BS)
    return advantages_BS.masked_fill(~known_BS, 0.0).to(torch.get_default_dtype())


def kept_if_answered(rewards_BS: Tensor, mask_BS: Tensor, answered_B: Tensor) -> Tensor:
    """`[B, S]`: an episode without an answer loses, on its last step, the positive rewards that its steps had.

    Else searching until all turns are spent pays more than a wrong answer, and the policy forgets to answer.
    As a potential it is 0 where the episode ends without an answer (Ng, Harada and Russell 1999).

    Args:
        rewards_BS: `[B, S]` step rewards.
        mask_BS: `[B, S]`, true where an episode has that step.
        answered_B: `[B]`, true where it ends with an answer.
    """
    gained_B = rewards_BS.masked_fill(~mask_BS, 0.0).clamp(min=0).sum(dim=1)
    return rewards_BS - (last_steps(mask_BS) & ~answered_B[:, None]) * gained_B[:, None]

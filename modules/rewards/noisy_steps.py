"""Noise on step rewards: a known share of the verdicts is turned round, to measure what credit tolerates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import RewardContext
from envs.types import Episode
from modules.rewards.terms import Reward


def noisy_steps(
    episodes: Sequence[Episode],
    context: RewardContext,
    *,
    reward: Reward,
    rate: float,
    paid: float = 1.0,
    seed: int = 0,
) -> list[Tensor]:
    """`[S]` for each episode: another step reward, except for a share of the steps.

    There a step that was paid gets 0, and one that was not gets `paid`, as from a judge that errs. A hash of `seed` and
    the turn that wrote the step decides, so paths of a tree that share a turn agree. A NaN stays. It logs the share of
    steps that were turned round (`turned_round`).

    Args:
        reward: a step reward of at least 0.
        rate: the share, in [0, 1].
        paid: what a step gets that deserves nothing.
        seed: of the hash.

    Raises:
        ConfigError: the rate is out of range.
    """
    if not 0 <= rate <= 1:
        raise ConfigError(f"noisy_steps: rate {rate} must be in [0, 1]")
    noisy: list[Tensor] = []
    flags: list[Tensor] = []
    for episode, reward_S in zip(episodes, reward(episodes, context), strict=True):
        turned = [
            bool(step.spans) and stable_hash(seed, "step", episode.turns[step.spans[-1][0]].uid) / 2**63 < rate
            for step in episode.steps
        ]
        turned_S = torch.tensor(turned, dtype=torch.bool, device=reward_S.device) & reward_S.isfinite()
        noisy.append(torch.where(turned_S, torch.where(reward_S > 0, 0.0, paid), reward_S))
        flags.append(turned_S.float())
    context.log("turned_round", torch.cat([torch.zeros(0), *flags]))
    return noisy

"""Noise on outcomes: a known share of the questions is scored by a poor key, to measure what credit tolerates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import RewardContext
from envs.types import Episode
from modules.rewards.terms import Reward


def noisy_outcome(
    episodes: Sequence[Episode],
    context: RewardContext,
    *,
    reward: Reward,
    wrong: float = 0.0,
    one_alias: float = 0.0,
    seed: int = 0,
) -> Tensor:
    """`[B]`: another outcome reward, except where a question's key is poor.

    A hash of `seed` and the id decides which questions these are, so a question is scored alike in every episode and
    iteration. Evaluations and oracles keep the true answers. It logs the share of episodes that are always wrong
    (`always_wrong`).

    Args:
        reward: an outcome reward.
        wrong: share of the questions where every answer scores 0.
        one_alias: share of the questions where only the first accepted answer counts.
        seed: of the hashes.

    Raises:
        ConfigError: a share is not in [0, 1].
    """
    for name, share in (("wrong", wrong), ("one_alias", one_alias)):
        if not 0 <= share <= 1:
            raise ConfigError(f"noisy_outcome: {name} {share} must be in [0, 1]")

    def poor(episode: Episode, kind: str, share: float) -> bool:
        return stable_hash(seed, kind, episode.question.id) / 2**63 < share

    keyed = [
        replace(episode, question=replace(episode.question, answers=episode.question.answers[:1]))
        if poor(episode, "one_alias", one_alias)
        else episode
        for episode in episodes
    ]
    always_B = torch.tensor([poor(episode, "wrong", wrong) for episode in episodes], dtype=torch.bool)
    context.log("always_wrong", always_B.float())
    return torch.as_tensor(reward(keyed, context)).masked_fill(always_B, 0.0)

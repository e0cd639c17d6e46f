"""The truth as a reward: an upper bound for process rewards, where a world knows it. For research alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import Oracle, RewardContext
from envs.types import Episode


def true_steps(episodes: Sequence[Episode], context: RewardContext, *, oracle: Oracle) -> list[Tensor]:
    """`[S]` an episode: 1 for a step that is right in content and format, else 0."""
    return [torch.tensor(oracle.judge(episode).valid, dtype=torch.float32) for episode in episodes]

"""Format rewards: whether steps and whole episodes follow the protocol."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import RewardContext
from envs.types import Episode


def step_format(
    episodes: Sequence[Episode], context: RewardContext, *, valid: float = 1.0, invalid: float = 0.0
) -> list[Tensor]:
    """`[S]` for each episode: `valid` or `invalid`. Source: ProRAG Eq 5, I^step; its released code has 1 and -2."""
    values = [[valid if step.valid else invalid for step in episode.steps] for episode in episodes]
    return [torch.tensor(row, dtype=torch.float32) for row in values]


def trajectory_format(
    episodes: Sequence[Episode], context: RewardContext, *, valid: float = 1.0, invalid: float = 0.0
) -> Tensor:
    """`[B]`: `valid` where the whole episode follows the protocol, else `invalid`. Source: ProRAG Eq 6, I^traj.

    ProRAG's released code has 1 and -1, and accepts an answer without a search (`min_hops: 0` of its protocol).
    """
    values = [valid if context.protocol.valid(episode) else invalid for episode in episodes]
    return torch.tensor(values, dtype=torch.float32)

"""The truth as a reward: an upper bound for process rewards, where an oracle knows it. For research alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import Oracle, RewardContext
from envs.types import Episode


def true_steps(episodes: Sequence[Episode], context: RewardContext, *, oracle: Oracle) -> list[Tensor]:
    """`[S]` an episode: 1 for a step that is right in content and format, else 0; NaN without a verdict."""
    verdicts = [oracle.judge(episode).valid for episode in episodes]
    return [
        torch.tensor([float("nan") if verdict is None else float(verdict) for verdict in valid]) for valid in verdicts
    ]

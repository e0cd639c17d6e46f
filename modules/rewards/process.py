"""Process reward: what a process reward model says of every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import RewardContext, StepScorer
from envs.types import Episode


def process(
    episodes: Sequence[Episode],
    context: RewardContext,
    *,
    scorer: StepScorer,
) -> list[Tensor]:
    """`[S]` an episode: the sigmoid of the scorer's scores (ProRAG Eq 5, R_phi); 0 for a step out of format.

    Reward models are trained on steps in format alone: what they say of others must not be a reward.
    """
    return [
        score.sigmoid().masked_fill(torch.tensor([not step.valid for step in episode.steps], device=score.device), 0.0)
        for episode, score in zip(episodes, scorer.score(episodes), strict=True)
    ]

"""Process reward: the score of a process reward model for every step."""

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
    """`[S]` for each episode: the sigmoid of the scorer's scores (ProRAG Eq 5, R_phi); 0 for an invalid step.

    Reward models are trained on valid steps alone, so their scores of other steps mean nothing.
    """
    return [
        score.sigmoid().masked_fill(_invalid(episode).to(score.device), 0.0)
        for episode, score in zip(episodes, scorer.score(episodes), strict=True)
    ]


def _invalid(episode: Episode) -> Tensor:
    """`[S]`: which steps are out of format; of an episode without steps too, whose prompt left no room for a turn."""
    return torch.tensor([not step.valid for step in episode.steps], dtype=torch.bool)

"""Outcome rewards: the correctness of the answer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.answers import exact_match, f1_score
from envs.interfaces import RewardContext
from envs.types import Episode


def answer_f1(
    episodes: Sequence[Episode], context: RewardContext, *, scale: float = 1.0, zero_below: float = 0.0
) -> Tensor:
    """`[B]`: `scale` times the answer's F1, 0 where the F1 is below `zero_below`. Source: ProRAG Eq 6.

    ProRAG's released code has scale 2 and `zero_below` 0.2.
    """
    f1 = [f1_score(episode.answer, episode.question.answers) for episode in episodes]
    return torch.tensor([scale * value if value >= zero_below else 0.0 for value in f1], dtype=torch.float32)


def answer_exact(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
    """`[B]`: 1 where the normalised answer is one of the accepted ones, else 0."""
    exact = [exact_match(episode.answer, episode.question.answers) for episode in episodes]
    return torch.tensor(exact, dtype=torch.float32)

"""Process reward: what a process reward model says of every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from envs.interfaces import RewardContext, StepScorer
from envs.types import Episode


def process(
    episodes: Sequence[Episode],
    context: RewardContext,
    *,
    scorer: StepScorer,
    squash: Literal["sigmoid", "none"] = "sigmoid",
) -> list[Tensor]:
    """`[S]` an episode: the scorer's scores, or their sigmoid in (0, 1). Source: ProRAG Eq 5, R_phi."""
    scores = scorer.score(episodes)
    return [score.sigmoid() for score in scores] if squash == "sigmoid" else list(scores)

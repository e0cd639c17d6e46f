"""Position of a step as its score: a baseline that knows only that errors come late."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.types import Episode


class Position:
    """Scores the first step of an episode 0, the second -1, and so on; a `StepScorer`."""

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """`[S]` an episode."""
        return [-torch.arange(len(episode.steps)).float() for episode in episodes]

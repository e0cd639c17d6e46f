"""Price of searching: each search costs as much as the reward's weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import RewardContext
from envs.types import Episode


def search_cost(episodes: Sequence[Episode], context: RewardContext) -> list[Tensor]:
    """`[S]` for each episode: -1 for a step that searches, 0 for others. `weight: 0.05` is the price of a search."""
    return [torch.tensor([-1.0 if step.query else 0.0 for step in episode.steps]) for episode in episodes]

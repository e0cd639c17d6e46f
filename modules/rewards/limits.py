"""Episodes that a limit has cut, left out of training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import RewardContext
from envs.types import Episode

_CUT = ("step_budget", "token_budget", "exhausted")


def within_limits(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
    """`[B]`: 0 for an episode that ended on its own, NaN for one that ran out of turns or tokens.

    Added to the other outcome rewards with any weight but 0, it excludes cut episodes from training and from their
    group's statistics: how they would have ended is not known. If all episodes of a rank are cut, the run ends. After
    overlong filtering, DAPO (arXiv 2503.14476), which leaves the rewards of those that were cut
    in the mean of their group.
    """
    return torch.tensor([math.nan if episode.status in _CUT else 0.0 for episode in episodes], dtype=torch.float32)

"""Outcome reward in which not to answer is better than a wrong answer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.answers import abstains, exact_match
from common.errors import ConfigError
from envs.interfaces import RewardContext
from envs.types import Episode


def answer_or_abstain(episodes: Sequence[Episode], context: RewardContext, *, abstain: float = 0.3) -> Tensor:
    """`[B]`: 1 for a right answer, `abstain` for "I do not know", 0 for a wrong answer or none.

    For a question that has no answer, "I do not know" is its accepted answer, and so right. It logs the share of
    episodes that abstain (`abstained`).

    Raises:
        ConfigError: `abstain` is not between 0 and 1.
    """
    if not 0 < abstain < 1:
        raise ConfigError(f"answer_or_abstain: abstain {abstain} must lie between 0 (wrong) and 1 (right)")
    right = [exact_match(episode.answer, episode.question.answers) for episode in episodes]
    left = [abstains(episode.answer) for episode in episodes]
    context.log("abstained", torch.tensor(left, dtype=torch.float32))
    return torch.tensor([max(one, abstain * no) for one, no in zip(right, left, strict=True)], dtype=torch.float32)

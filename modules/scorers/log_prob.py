"""The policy's own log-probability of a step as its score: a bound that a reward model must beat, for it is free."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from envs.types import Episode, Step

_LARGEST = -1e-6  # of a mean log-probability: that of certainty has no finite log-odds


class MeanLogProb:
    """Scores a step by the log-probabilities that its tokens were sampled with; a `StepScorer`.

    The score is the log-odds of p, the geometric mean of the tokens' probabilities, so that its sigmoid, which
    `modules.rewards.process:process` takes, is p.
    """

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """`[S]` an episode; NaN for a step without sampled tokens."""
        return [torch.tensor([_log_odds(episode, step) for step in episode.steps]) for episode in episodes]


def _log_odds(episode: Episode, step: Step) -> float:
    logps = [logp for turn, start, end in step.spans for logp in episode.turns[turn].action_logps[start:end]]
    if not logps:
        return math.nan
    mean = min(math.fsum(logps) / len(logps), _LARGEST)
    return mean - math.log(-math.expm1(mean))

"""The truth as a score: an upper bound for any reward model, where an oracle knows it. For research alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import Oracle
from envs.judgements import on_chain
from envs.types import Episode

CERTAIN = 20.0  # log-odds whose sigmoid is 1 in float32


class Truth:
    """Scores a step by whether it is true; a `StepScorer`.

    Args:
        oracle: knows the truth of every step.
        on_chain: also calls a claim untrue if it establishes nothing new that the question needs.
    """

    def __init__(self, oracle: Oracle, *, on_chain: bool = False) -> None:
        self.oracle, self.on_chain = oracle, on_chain

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """`[S]` an episode: log-odds of 20 for a true step, -20 for an untrue one, NaN without a verdict."""
        values = {True: CERTAIN, False: -CERTAIN, None: float("nan")}
        return [torch.tensor([values[verdict] for verdict in self._verdicts(episode)]) for episode in episodes]

    def _verdicts(self, episode: Episode) -> Sequence[bool | None]:
        judgement = self.oracle.judge(episode)
        return on_chain(episode, judgement) if self.on_chain else judgement.valid

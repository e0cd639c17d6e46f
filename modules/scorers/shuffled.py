"""Scores that went to the wrong steps: what is left of a reward model that says nothing of the step it scores."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from common.seeds import stable_hash
from envs.interfaces import StepScorer
from envs.types import Episode


class Shuffled:
    """Another scorer's scores, dealt out anew among the steps of one kind of each question; a `StepScorer`.

    Scores of steps in format change places, in an order that is a hash of seed, question, iteration, sample and step. A
    kind keeps its scores, so they say what the kinds differ by and nothing of a step. What a question's episodes have
    on the whole stays: AUC over several questions can lie above one half, credit within a group learns nothing.

    Args:
        scorer: whose scores are dealt out.
        seed: of the order.
    """

    def __init__(self, scorer: StepScorer, *, seed: int = 0) -> None:
        self.scorer, self.seed = scorer, seed

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """`[S]` an episode; the episodes of a question are to be scored in one call."""
        scores = [row.clone() for row in self.scorer.score(episodes)]
        alike: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for number, (episode, row) in enumerate(zip(episodes, scores, strict=True)):
            for s, step in enumerate(episode.steps):
                if step.valid and row[s].isfinite():
                    alike.setdefault((episode.question.id, step.kind), []).append((number, s))
        for places in alike.values():
            dealt = [
                float(scores[number][s]) for number, s in sorted(places, key=lambda at: self._order(episodes, *at))
            ]
            for (number, s), value in zip(places, dealt, strict=True):
                scores[number][s] = value
        return scores

    def _order(self, episodes: Sequence[Episode], number: int, step: int) -> int:
        episode = episodes[number]
        return stable_hash(self.seed, "shuffled", episode.question.id, episode.iteration, episode.sample, step)

"""Shuffled scores: a lower bound that keeps what a scorer knows of a kind of step, and nothing of the single step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import StepScorer
from envs.types import Episode


class Shuffled:
    """Another scorer's scores, dealt out anew among the steps of one kind; a `StepScorer`.

    Scores of steps in format change places, in an order that is a hash of seed, question, iteration, sample and step. A
    kind keeps its scores, so they say what the kinds differ by and nothing of a step.

    Args:
        scorer: whose scores are dealt out.
        within: `question` deals among the episodes of a question, so that credit within its group learns nothing. What
            these episodes have on the whole stays, and with one episode a question an answer's score does, so steps of
            several questions are ranked above chance. `call` deals among all episodes that are scored together.
        seed: of the order.

    Raises:
        ConfigError: `within` is neither.
    """

    def __init__(self, scorer: StepScorer, *, within: str = "question", seed: int = 0) -> None:
        if within not in ("question", "call"):
            raise ConfigError(f"within: {within!r}; must be 'question' or 'call'")
        self.scorer, self.within, self.seed = scorer, within, seed

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """`[S]` an episode; the episodes of a question are to be scored in one call."""
        scores = [row.clone() for row in self.scorer.score(episodes)]
        alike: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for number, (episode, row) in enumerate(zip(episodes, scores, strict=True)):
            for s, step in enumerate(episode.steps):
                if step.valid and row[s].isfinite():
                    question = episode.question.id if self.within == "question" else ""
                    alike.setdefault((question, step.kind), []).append((number, s))
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

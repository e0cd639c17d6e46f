"""Steps that a judge compares, mostly siblings, which continue one episode; its verdicts and the pairs they give."""

from __future__ import annotations

from dataclasses import dataclass

from envs.types import Episode, Step


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step to be compared: an episode that ends in it, and its statistics in the tree search.

    `value` is the mean backed-up value in [0, 1], `visits` the number of values in that mean.
    """

    episode: Episode
    value: float = 0.0
    visits: int = 0

    def written(self) -> tuple[Step, ...]:
        """The steps of the last turn, which are what is compared: one where a turn is a step."""
        last = len(self.episode.turns) - 1
        return tuple(step for step in self.episode.steps if any(turn == last for turn, _, _ in step.spans))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's preference: the indices of the better and the worse candidate, and the reason."""

    chosen: int
    rejected: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A better and a worse step on one question, as episodes with `steps` set; siblings differ only in the last turn.

    Values and visits are those of the search, as in `Candidate`.
    """

    chosen: Episode
    rejected: Episode
    chosen_value: float = 0.0
    chosen_visits: int = 0
    rejected_value: float = 0.0
    rejected_visits: int = 0
    reason: str = ""

"""Steps that are compared, most often siblings, which continue one episode: what is judged, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from envs.types import Episode, Step


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several steps: an episode that ends in it, and what the tree search knows of it.

    `value` is the mean backed-up outcome in [0, 1] and `visits` how often it was measured.
    """

    episode: Episode
    value: float = 0.0
    visits: int = 0

    def written(self) -> tuple[Step, ...]:
        """The steps that the last turn wrote in, and so what is compared: one where a turn is a step."""
        last = len(self.episode.turns) - 1
        return tuple(step for step in self.episode.steps if any(turn == last for turn, _, _ in step.spans))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's preference among candidates: indices of the better and the worse one, and why."""

    chosen: int
    rejected: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two steps on one question and which is better: episodes with `steps` set; siblings differ in the last turn alone.

    Values and visits are those the search gave the two steps, as in `Candidate`.
    """

    chosen: Episode
    rejected: Episode
    chosen_value: float = 0.0
    chosen_visits: int = 0
    rejected_value: float = 0.0
    rejected_visits: int = 0
    reason: str = ""

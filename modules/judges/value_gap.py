"""Preferences from the values of the tree search alone."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ConfigError
from envs.pairs import Candidate, Verdict
from modules.judges.pairing import ranked_pairs


class ValueGap:
    """Prefers the step with the higher search value. It measures luck as well as logic: a baseline for other judges.

    Args:
        min_gap: least difference of two values.
        min_visits: outcomes that a value must rest on.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(self, *, min_gap: float = 0.2, min_visits: int = 2) -> None:
        if not 0 < min_gap <= 1 or min_visits < 1:
            raise ConfigError(f"min_gap {min_gap} must be in (0, 1], min_visits {min_visits} at least 1")
        self.min_gap, self.min_visits = min_gap, min_visits

    def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[tuple[Verdict, ...] | None]:
        """Verdicts by how far two values lie apart in rank, see `ranked_pairs`."""
        return [self._compare(group) for group in groups]

    def _compare(self, group: Sequence[Candidate]) -> tuple[Verdict, ...]:
        levels = [candidate.value if candidate.visits >= self.min_visits else None for candidate in group]
        return tuple(
            Verdict(better, worse, f"value {group[better].value:.2f} against {group[worse].value:.2f}")
            for better, worse in ranked_pairs(levels, self.min_gap)
        )

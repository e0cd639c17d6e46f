"""Checks of searches by comparing two texts, without any model or truth."""

from __future__ import annotations

from collections.abc import Sequence

from common.answers import normalize_answer
from systems.hiprag.checks import Check, read_claim


class Equality:
    """Two texts say the same if they are equal when normalised. It cannot tell whether a statement holds."""

    def verify(self, checks: Sequence[Check]) -> list[bool | None]:
        """True or False of a search, None of a statement."""
        return [self._same(check) if check.kind == "over_search" else None for check in checks]

    def _same(self, check: Check) -> bool:
        return normalize_answer(check.answer) == normalize_answer(read_claim(check)) != ""

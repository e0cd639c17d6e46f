"""Pairs for verdicts, from a worth of each step."""

from __future__ import annotations

from collections.abc import Sequence


def ranked_pairs(levels: Sequence[float | None], min_gap: float) -> list[tuple[int, int]]:
    """Indices (better, worse) of all pairs at least `min_gap` apart; None takes no part.

    The best against the worst comes first, then the second best against the second worst: the first few pairs repeat
    as few siblings as they can.
    """
    order = sorted((i for i, level in enumerate(levels) if level is not None), key=lambda i: -(levels[i] or 0.0))
    pairs = []
    for top, better in enumerate(order):
        for bottom, worse in enumerate(reversed(order)):
            if (levels[better] or 0.0) - (levels[worse] or 0.0) >= min_gap:
                pairs.append((abs(top - bottom), top, better, worse))
    return [(better, worse) for _, _, better, worse in sorted(pairs)]

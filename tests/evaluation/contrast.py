"""How well a colour stands out."""

from __future__ import annotations

from collections.abc import Sequence


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """The contrast ratio of WCAG 2.2 of two colours, red, green and blue from 0 to 1."""

    def light(colour: Sequence[float]) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)

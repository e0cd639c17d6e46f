"""Arithmetic of rows of values that are compared with each other: normalised, or less the mean of the others."""

from __future__ import annotations

from torch import Tensor

NO_SPREAD = 1e-6  # values that lie this close say nothing of which is better


def normalize_rows(values: Tensor, weights: Tensor, *, correction: int, eps: float, scale: bool = True) -> Tensor:
    """Normalise each row `[N, M]` by its weighted mean and, with `scale`, std; 0 without weight and without spread."""
    known = weights > 0
    values = values.masked_fill(~known, 0.0)
    total = weights.sum(dim=1, keepdim=True)
    differences = values - (weights * values).sum(dim=1, keepdim=True) / total.clamp(min=1e-12)
    variance = (weights * differences**2).sum(dim=1, keepdim=True) / (total - correction).clamp(min=1e-12)
    flat = no_spread(values, known)[:, None]
    divisor = (variance.sqrt() + eps).clamp(min=1e-12) if scale else 1.0
    return (differences / divisor).masked_fill(flat | ~known, 0.0)


def less_others(values: Tensor, known: Tensor) -> Tensor:
    """Each known value of a row `[N, M]` less the mean of the row's other known ones; 0 without spread or unknown."""
    values = values.masked_fill(~known, 0.0)
    others = (values.sum(dim=1, keepdim=True) - values) / (known.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    flat = no_spread(values, known)[:, None]
    return (values - others).masked_fill(flat | ~known, 0.0)


def no_spread(values: Tensor, known: Tensor) -> Tensor:
    """Whether the known values of each row `[N, M]` lie within 1e-6 or are fewer than two, `[N]` bool."""
    low = values.masked_fill(~known, float("inf")).amin(dim=1)
    high = values.masked_fill(~known, float("-inf")).amax(dim=1)
    return (high - low <= NO_SPREAD) | (known.sum(dim=1) < 2)

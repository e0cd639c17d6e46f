"""Curves of reinforcement by sampled tokens, and what its credit taught at the start, from events of finished fits."""

from __future__ import annotations

import math
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from common.errors import DataError

Row = dict[str, Any]
Points = list[tuple[int, float]]  # (update, value)

MEASURES = ("em", "flawed")
_TOKENS = re.compile(r"cost/tokens/.+")
_EARLY = re.compile(r"event/.+/(adv|share)|credit/.+|frac_reward_zero_std/.+|rewards/.+/mean")
_FIRST = 5  # points whose mean says what credit taught before the policy moved


def training_curves(artifact: Path) -> Iterator[Row]:
    """A row for each dataset that a fit was validated on: `dataset`, `split`, `tokens`, and of each the measures.

    `tokens` are those sampled for training before the point. `early` holds the means of the first points of what was
    logged of rewards and of credit (`callbacks.credit_diagnostics`). A fit without validation or events has no row.

    Raises:
        DataError: the events are damaged.
    """
    events = _events(artifact / "events.tar")
    spent = [points for tag, points in events.items() if _TOKENS.fullmatch(tag)]
    early = {
        tag: _short(np.mean([value for _, value in points[:_FIRST]]))
        for tag, points in events.items()
        if _EARLY.fullmatch(tag)
    }
    for tag, points in events.items():
        if found := re.fullmatch(r"eval/(.+)/(.+)/em", tag):
            updates = [update for update, _ in points]
            place = {"dataset": found[1], "split": found[2]}
            measured = {
                name: _values(events.get(f"eval/{found[1]}/{found[2]}/{name}", []), updates) for name in MEASURES
            }
            yield place | {"tokens": [_before(spent, update) for update in updates]} | measured | {"early": early}


def area(tokens: Sequence[float], values: Sequence[float | None], budget: float) -> float:
    """Mean of a curve over 0 to `budget` tokens, by trapezoids; NaN where it ends more than a tenth earlier."""
    known = [(place, value) for place, value in zip(tokens, values, strict=True) if value is not None]
    if len(known) < 2 or known[-1][0] < 0.9 * budget:
        return math.nan
    places, heights = map(np.array, zip(*known, strict=True))
    grid = np.union1d(places[places <= budget], [0.0, budget])
    return float(np.trapezoid(np.interp(grid, places, heights), grid) / budget)


def _before(spent: Sequence[Points], update: int) -> int:
    """Tokens of all agents that were sampled for the first so many updates."""
    totals = ([value for at, value in points if at < update] for points in spent)
    return round(sum(values[-1] for values in totals if values))


def _values(points: Points, updates: Sequence[int]) -> list[float | None]:
    by_update = dict(points)
    return [_short(by_update[update]) if update in by_update else None for update in updates]


def _short(value: Any) -> float | None:
    return round(float(value), 4) if math.isfinite(value) else None


def _events(archive: Path) -> Mapping[str, Points]:
    """All scalars of packed events by tag."""
    from tensorboard.backend.event_processing import event_accumulator  # takes seconds to import

    if not archive.exists():
        return {}
    with TemporaryDirectory() as folder:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise DataError(f"{archive} is damaged: {error}; remove its folder and run again") from None
        size = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 1}  # 0: all
        events = event_accumulator.EventAccumulator(folder, size).Reload()
        return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

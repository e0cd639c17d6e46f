"""The arms of frozen results on one dataset: their figures, and paired tests of one against another. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import DataError
from evaluation.scoring import RATES
from evaluation.statistics import (
    Floats,
    PairedTest,
    average_seeds,
    bootstrap_interval,
    bootstrap_ratio,
    paired_bootstrap,
    paired_t_test,
)
from evaluation.tables import MISSING, estimate, spread

_SEED = 0  # of the bootstrap: the same results always give the same page

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """An arm on a dataset: its row of results for each seed, and the seed's questions in the order of its values."""

    name: str
    rows: dict[int, Row]
    questions: dict[int, Sequence[str]]

    def values(self, measure: str, seeds: Iterable[int] | None = None) -> dict[int, dict[str, float]]:
        """Each seed's values by question, NaN where the measure does not apply, of those seeds that kept any."""
        kept: dict[int, dict[str, float]] = {}
        for seed in self.rows if seeds is None else seeds:
            if (values := self.rows[seed].get("values", {}).get(measure)) is not None:
                numbers = (math.nan if value is None else value for value in values)
                kept[seed] = dict(zip(self.questions[seed], numbers, strict=True))
        return kept

    def counts(self, rate: str) -> dict[int, tuple[dict[str, float], dict[str, float]]]:
        """Numerators and denominators of a rate by question, of the seeds that kept both; empty for other measures."""
        wrong, judged = map(self.values, RATES.get(rate, ("", "")))
        return {seed: (wrong[seed], judged[seed]) for seed in wrong if seed in judged}

    def means(self, measure: str) -> dict[int, float]:
        """The mean over questions of each seed; of a rate, what is counted of all its questions."""
        if measure in RATES:
            sums = {seed: [_sum(values) for values in pair] for seed, pair in self.counts(measure).items()}
            return {seed: top / bottom for seed, (top, bottom) in sums.items() if bottom}
        return {seed: _mean(values) for seed, values in self.values(measure).items()}

    def has(self, metric: str) -> bool:
        """Whether any seed has a figure."""
        known = [value for value in self.means(metric).values() if not math.isnan(value)]
        return bool(known) or any(row.get(metric) is not None for row in self.rows.values())

    def shown(self, metric: str) -> str:
        """The cell of a figure: its mean or rate with the interval over questions, of the seeds that kept these.

        Where none did: the figure of the only seed, or the mean and standard deviation over seeds.
        """
        if counted := self.counts(metric):
            wrong, judged = (np.nansum(_grid(kept), axis=0) for kept in zip(*counted.values(), strict=True))
            if not judged.any():
                return MISSING
            return estimate(metric, wrong.sum() / judged.sum(), *bootstrap_ratio(wrong, judged, seed=_SEED))
        if kept := self.values(metric):
            averages = average_seeds(_grid(kept.values()))
            used = averages[~np.isnan(averages)]
            interval = bootstrap_interval(used, seed=_SEED)
            return estimate(metric, float(used.mean()), *interval) if len(used) else MISSING
        if len(self.rows) == 1:
            row = next(iter(self.rows.values()))
            return estimate(metric, *(row.get(key) for key in (metric, f"{metric}_low", f"{metric}_high")))
        return spread(metric, [row.get(metric) for row in self.rows.values()])


def measured(results: Row) -> dict[str, dict[str, Measured]]:
    """The arms of frozen results by `<dataset>/<split>` and name."""
    asked: dict[str, dict[int, Sequence[str]]] = {}
    for entry in results["questions"]:
        asked.setdefault(place_of(entry), {})[entry["seed"]] = entry["hashes"]
    found: dict[str, dict[str, Measured]] = {}
    for row in results["rows"]:
        place, name = place_of(row), row["arm"]
        arm = found.setdefault(place, {}).setdefault(name, Measured(name, {}, asked.get(place, {})))
        arm.rows[row["seed"]] = row
    return found


def place_of(row: Row) -> str:
    """`<dataset>/<split>`."""
    return f"{row['dataset']}/{row['split']}"


def over_questions(arm: Measured, base: Measured, measure: str) -> PairedTest | None:
    """The bootstrap test of an arm against another on the same questions and seeds; None where either kept none.

    Two of different seeds are compared by the questions that both answered, if these are the same.

    Raises:
        DataError: they answered different questions.
    """
    seeds = [seed for seed in arm.rows if seed in base.rows] or None
    own, other = arm.values(measure, seeds), base.values(measure, seeds)
    if not own or not other:
        return None
    order = [*dict.fromkeys(question for values in other.values() for question in values)]
    if differ := set(order) ^ {question for values in own.values() for question in values}:
        raise DataError(f"cannot pair {arm.name} with {base.name}: {len(differ)} questions differ; use the same")
    a, b = (average_seeds(_grid(values.values(), order)) for values in (own, other))
    return None if np.isnan(a).all() else paired_bootstrap(a, b, seed=_SEED)


def over_seeds(own: Mapping[int, float], other: Mapping[int, float]) -> PairedTest:
    """Student's paired test over the seeds that both have."""
    seeds = [seed for seed in own if seed in other]
    return paired_t_test([own[seed] for seed in seeds], [other[seed] for seed in seeds])


def _grid(by_seed: Collection[Mapping[str, float]], order: Sequence[str] | None = None) -> Floats:
    """Values [K seeds, N questions], NaN where a seed has no such question."""
    order = order or [*dict.fromkeys(question for values in by_seed for question in values)]
    return np.array([[values.get(question, math.nan) for question in order] for values in by_seed], dtype=float)


def _mean(values: Mapping[str, float]) -> float:
    known = [value for value in values.values() if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _sum(values: Mapping[str, float]) -> float:
    return math.fsum(value for value in values.values() if not math.isnan(value))

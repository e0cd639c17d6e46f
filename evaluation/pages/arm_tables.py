"""Tables of frozen arms: results, costs, tests against baseline and own warm-up, types of question, when they stop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from evaluation.pages.arms import Measured, Row, measured, over_questions, over_seeds, place_of
from evaluation.scoring import RATES
from evaluation.statistics import PairedTest, holm
from evaluation.tables import METRICS, MISSING, estimate, figure, metrics_table, p_value, seeds_table, table

TESTED = ("em", "f1", "true_steps", *RATES)
TOLERANCE = 0.1  # of the baseline's tokens
MARK = "†"
_COSTS = {
    "last_tokens": "in the last stage",
    "updates": "updates",
    "judge_calls": "judge calls",
    "cpu_seconds": "CPU-seconds",
}
_COST_LEGEND = (
    "Means over seeds, of all stages that a policy came from. Tokens: what policies sampled for training, all agents "
    "together, with the tree search's played-out turns and what rewards asked the policy; a teacher's count nothing. "
    "Updates: of optimisers, warm-up included. Judge calls: groups of steps compared and steps verified, cached "
    "replies included. CPU-seconds: of all processes."
)
_MARK_LEGEND = f"{MARK}: more than 10 % more or fewer tokens than {{base}} on the same seeds."
_TEST_LEGEND = (
    "Difference to {base} on the same questions and seeds, with its 95 % bootstrap interval. p: two-sided, "
    "paired: a bootstrap over questions, which generalises to other questions under these seeds, and Student's t over "
    "the means of seeds, which generalises to other seeds. Holm: adjusted for all arms by one measure. OSR and USR are "
    "rates of all steps of a seed, so they are tested by seed alone."
)
_WARM_UP_LEGEND = (
    "Each trained policy and the first policy that it came from, in exact match. Brackets: 95 % interval over "
    "seeds, by Student's t; a gain is shown where it holds no 0."
)


def results_parts(results: Row, metrics: Sequence[str] = tuple(METRICS)) -> Iterator[str]:
    """The figures of every arm, a table for each dataset."""
    found = measured(results)
    marks = _marks(results)
    several = any(len(arm.rows) > 1 for arms in found.values() for arm in arms.values())
    yield "Means over seeds; ±: their standard deviation." if several else ""
    for place, arms in found.items():
        shown = [metric for metric in metrics if any(arm.has(metric) for arm in arms.values())]
        rows = [
            [marks.get(arm.name, arm.name), _listed(arm.rows), _size(arm), *map(arm.shown, shown)]
            for arm in arms.values()
        ]
        yield from [f"### {place}"] if len(found) > 1 else []
        yield table(["arm", "seeds", "n", *(METRICS.get(metric, metric) for metric in shown)], rows)


def cost_parts(results: Row) -> Iterator[str]:
    """Cost of making each policy, as far as it is known."""
    spent = _costs(results)
    marks, base = _marks(results), results["baseline"]
    known = [name for name in _COSTS if all(name in each for by_seed in spent.values() for each in by_seed.values())]
    rows = []
    for arm, by_seed in spent.items():
        cells = [marks.get(arm, arm), _listed(by_seed), f"{_mean(by_seed, 'tokens'):,.0f}"]
        cells += [_share(by_seed, spent[base])] if base in spent else []
        rows.append([*cells, *(f"{_mean(by_seed, name):,.0f}" for name in known)])
    if rows:
        yield f"{_COST_LEGEND} {_MARK_LEGEND.format(base=base)}" if base in spent else _COST_LEGEND
        share = [f"of {base}'s"] if base in spent else []
        yield table(["arm", "seeds", "tokens", *share, *map(_COSTS.__getitem__, known)], rows)


def difference_parts(results: Row, measures: Sequence[str] = TESTED) -> Iterator[str]:
    """Paired tests of every arm against the baseline, a table for each measure and dataset that has any.

    Raises:
        DataError: an arm and the baseline answered different questions.
    """
    base = results["baseline"]
    found = {place: arms for place, arms in measured(results).items() if base in arms}
    legend = [_TEST_LEGEND.format(base=base)]
    for measure in measures:
        tests = {
            (place, name): _tests(measure, arm, arms[base])
            for place, arms in found.items()
            for name, arm in arms.items()
            if name != base
        }
        tests = {where: pair for where, pair in tests.items() if any(map(_tested, pair))}
        adjusted = [holm([_p(pair[i]) for pair in tests.values()]) for i in range(2)]
        corrected = dict(zip(tests, zip(*adjusted, strict=True), strict=True))
        for place, arms in found.items():
            means = {name: arm.means(measure) for name, arm in arms.items()}
            differences = {name: _by_seed(measure, own, means[base]) for name, own in means.items()}
            rows = [
                [name, _listed(arms[name].rows), *_test_cells(measure, pair, corrected[where, name]), differences[name]]
                for (where, name), pair in tests.items()
                if where == place
            ]
            if rows:
                yield from legend
                yield f"### {METRICS.get(measure, measure)}{f', {place}' if len(found) > 1 else ''}"
                header = ["arm", "seeds", "difference", "p questions", "Holm", "p seeds", "Holm", "by seed"]
                yield table(header, rows)
                legend = []


def warm_up_parts(results: Row) -> Iterator[str]:
    """Gain of each policy over its own warm-up, a table for each dataset that has any."""
    starts: dict[str, dict[int, str]] = {}
    for arm in results["arms"]:
        if arm["warm_up"]:
            starts.setdefault(arm["arm"], {})[arm["seed"]] = arm["warm_up"]
    found = measured(results)
    legend = [_WARM_UP_LEGEND]
    for place, arms in found.items():
        means = {name: arm.means("em") for name, arm in arms.items()}
        rows = []
        for name, by_seed in starts.items():
            before = {seed: means[start][seed] for seed, start in by_seed.items() if seed in means.get(start, {})}
            after = {seed: means[name][seed] for seed in before if seed in means.get(name, {})}
            if after:
                test = over_seeds(after, before)
                cells = [figure("em", float(np.mean([values[seed] for seed in after]))) for values in (before, after)]
                gain = estimate("em", test.difference, test.low, test.high, signed=True)
                rows.append([name, next(iter(by_seed.values())), *cells, gain, p_value(test.p)])
                rows[-1].append(_by_seed("em", after, before))
        if rows:
            yield from legend
            yield from [f"### {place}"] if len(found) > 1 else []
            header = ["arm", "warm-up", "before", "after", "difference", "p seeds", "by seed"]
            yield table(header, rows, labels=2)
            legend = []


def stopping_parts(results: Row) -> Iterator[str]:
    """When policies stop, by number of hops: means over seeds."""
    rows = [{**row, "place": place_of(row)} for row in results["stopping"]]
    several = {"place": "dataset"} if len({row["place"] for row in rows}) > 1 else {}
    if rows:
        yield seeds_table({"arm": "arm"} | several | {"hops": "hops"}, rows)


def type_parts(results: Row) -> Iterator[str]:
    """Results by type of question: with intervals of one seed, else means over seeds."""
    rows = [{**row, "place": place_of(row)} for row in results.get("types", ())]
    several = {"place": "dataset"} if len({row["place"] for row in rows}) > 1 else {}
    if rows:
        shown = seeds_table if len({row["seed"] for row in rows}) > 1 else metrics_table
        yield shown({"arm": "arm"} | several | {"type": "type"}, rows)


def _costs(results: Row) -> dict[str, dict[int, Row]]:
    """Costs by arm and seed, where they are known."""
    spent: dict[str, dict[int, Row]] = {}
    for arm in results["arms"]:
        if arm["costs"] is not None:
            spent.setdefault(arm["arm"], {})[arm["seed"]] = arm["costs"]
    return spent


def _mean(by_seed: Mapping[int, Row], name: str, seeds: Iterable[int] | None = None) -> float:
    """The mean over seeds of a cost, tokens of all agents together."""
    costs = [by_seed[seed] for seed in (by_seed if seeds is None else seeds) if seed in by_seed]
    spent = [sum(each[name].values()) if name == "tokens" else each[name] for each in costs]
    return float(np.mean(spent)) if spent else math.nan


def _share(own: Mapping[int, Row], base: Mapping[int, Row]) -> str:
    other = _mean(base, "tokens", own)
    return f"{100 * _mean(own, 'tokens') / other:.0f} %" if other > 0 else MISSING


def _marks(results: Row) -> dict[str, str]:
    """The names of the arms whose tokens are known, with a mark where they are not within the baseline's tolerance."""
    spent = _costs(results)
    base = spent.get(results["baseline"], {})
    pairs = {name: (_mean(own, "tokens"), _mean(base, "tokens", own)) for name, own in spent.items()}
    return {name: f"{name} {MARK}" if abs(a - b) > TOLERANCE * b else name for name, (a, b) in pairs.items()}


def _size(arm: Measured) -> str:
    """Number of questions of a seed."""
    return " or ".join(dict.fromkeys(f"{row['n']:,}" for row in arm.rows.values()))


def _tests(measure: str, arm: Measured, base: Measured) -> tuple[PairedTest | None, PairedTest]:
    """Over questions, where there is one, and over seeds."""
    asked = None if measure in RATES else over_questions(arm, base, measure)
    return asked, over_seeds(arm.means(measure), base.means(measure))


def _tested(test: PairedTest | None) -> bool:
    return test is not None and not (math.isnan(test.difference) and math.isnan(test.p))


def _p(test: PairedTest | None) -> float:
    return math.nan if test is None else test.p


def _test_cells(measure: str, pair: tuple[PairedTest | None, PairedTest], adjusted: Sequence[float]) -> list[str]:
    shown = pair[0] or pair[1]
    cells = [estimate(measure, shown.difference, shown.low, shown.high, signed=True)]
    for test, corrected in zip(pair, adjusted, strict=True):
        cells += [p_value(_p(test)), p_value(corrected)]
    return cells


def _by_seed(measure: str, own: Mapping[int, float], other: Mapping[int, float]) -> str:
    differences = (own[seed] - other[seed] for seed in own if seed in other)
    return ", ".join(figure(measure, one, signed=True) for one in differences) or MISSING


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))

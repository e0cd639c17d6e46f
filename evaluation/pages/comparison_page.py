"""The page of a comparison of systems, from the seeds that `evaluation.pages.comparison` froze in one folder.

Rows are systems. Beside their figures stand what their policies cost, paired tests against the baseline, how far each
came from its own warm-up, how well verifiers agree with the truth, and what the papers report (`published.json`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DataError
from evaluation.pages.compare import Scores, paired_tests
from evaluation.pages.comparison import MEANS, SCHEMA
from evaluation.pages.comparison_tables import VERIFIER_LEGEND, published_parts, verifiers
from evaluation.results import read_json
from evaluation.scoring import RATES
from evaluation.statistics import (
    PairedTest,
    average_seeds,
    bootstrap_interval,
    bootstrap_ratio,
    holm,
    paired_t_test,
)
from evaluation.tables import LEGEND, METRICS, MISSING, estimate, figure, p_value, seeds_table, table

TESTED = ("em", "f1", "true_steps")
TOLERANCE = 0.1  # of the baseline's tokens
MARK = "†"
_SEED = 0  # of the bootstrap: the same seeds always give the same page
_COSTS = ("updates", "judge_calls", "cpu_seconds")
_LEGEND = LEGEND.replace("n: questions scored. ", "")  # all rows have the same questions, so there is no such column


@dataclass(frozen=True)
class System:
    """A system's frozen figures by seed, and each seed's questions."""

    name: str
    frozen: dict[int, dict[str, Any]]
    questions: dict[int, list[str]]

    def scores(self, measure: str, seeds: Sequence[int] | None = None) -> Scores:
        """A measure of every question [K, N], NaN where it does not apply, over some seeds."""
        seeds = [seed for seed in self.frozen if seeds is None or seed in seeds]
        by_seed = [dict(zip(self.questions[seed], self.frozen[seed]["values"][measure], strict=True)) for seed in seeds]
        order = list(dict.fromkeys(question for values in by_seed for question in values))
        grid = [[_number(values.get(question)) for question in order] for values in by_seed]
        return Scores(seeds, [(question, "", ()) for question in order], np.array(grid, dtype=float))

    def value(self, measure: str) -> str:
        """The cell of a measure: its mean, or rate, with the interval over questions."""
        if measure in RATES:
            wrong, judged = (np.nansum(self.scores(count).values, axis=0) for count in RATES[measure])
            if not judged.any():
                return MISSING
            return estimate(measure, wrong.sum() / judged.sum(), *bootstrap_ratio(wrong, judged, seed=_SEED))
        averages = average_seeds(self.scores(measure).values)
        used = averages[~np.isnan(averages)]
        return estimate(measure, float(used.mean()), *bootstrap_interval(used, seed=_SEED)) if len(used) else MISSING

    def cost(self, name: str, seeds: Sequence[int] | None = None) -> float:
        """The mean over seeds of an account, `tokens` of all agents together."""
        accounts = [frozen["accounts"] for seed, frozen in self.frozen.items() if seeds is None or seed in seeds]
        spent = [sum(each["tokens"].values()) if name == "tokens" else each[name] for each in accounts]
        return float(np.mean(spent))


def read(folder: Path) -> Mapping[str, Any]:
    """The first seed's JSON, which has the title and the question of all."""
    return next(iter(_seeds(folder).values()))


def render(folder: Path) -> list[str]:
    """The parts of the page.

    Raises:
        DataError: a file is malformed, or seeds differ in what they compare.
    """
    seeds = _seeds(folder)
    first = next(iter(seeds.values()))
    names = dict.fromkeys(system["name"] for frozen in seeds.values() for system in frozen["systems"])
    systems = {name: _system(name, seeds) for name in names}
    base = systems[first["baseline"]]
    sizes = " or ".join(dict.fromkeys(f"{len(frozen['questions']):,}" for frozen in seeds.values()))
    legend = f"{_versions(seeds)} Means over seeds, {sizes} questions a seed. {_LEGEND}"
    parts = ["## Systems", legend, _figures(systems.values(), base)]
    parts += ["## What the policies cost", _COST_LEGEND.format(base=base.name), _costs(systems.values(), base)]
    parts += ["## Against the baseline", _TEST_LEGEND.format(base=base.name), *_tests(systems, base)]
    parts += ["## Against the own warm-up", _WARM_UP_LEGEND, _warm_ups(systems)]
    if stopping := [row for frozen in seeds.values() for system in frozen["systems"] for row in _stopping(system)]:
        labels = {"system": "system", "hops": "hops"}
        parts += ["## When policies stop, by number of hops", seeds_table(labels, stopping)]
    if any(frozen["verifiers"] for frozen in seeds.values()):
        parts += ["## Verifiers", VERIFIER_LEGEND, verifiers(seeds)]
    published = folder / "published.json"
    if published.exists():
        parts += ["## What the papers report", *published_parts(read_json(published))]
    ran = [f"seed {seed}: {frozen['machine']}" for seed, frozen in seeds.items()]
    libraries = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    return [*parts, "## How it was run", f"```\n{first['command']}\n```", f"{'; '.join(ran)}; {libraries}."]


def _seeds(folder: Path) -> dict[int, dict[str, Any]]:
    seeds: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("seed*.json")):
        frozen = read_json(path)
        if frozen.get("schema") != SCHEMA:
            raise DataError(f"{path} is not of schema {SCHEMA}: make it with python -m evaluation.pages.comparison")
        if frozen["seed"] in seeds:
            raise DataError(f"{path} is of seed {frozen['seed']}, as another file of {folder} is")
        seeds[frozen["seed"]] = frozen
    for name in ("baseline", "benchmark"):
        if len({frozen[name] for frozen in seeds.values()}) > 1:
            raise DataError(f"the seeds of {folder} have different {name}s: freeze all with the same")
    return dict(sorted(seeds.items()))


def _system(name: str, seeds: Mapping[int, Mapping[str, Any]]) -> System:
    own = {seed: one for seed, frozen in seeds.items() for one in frozen["systems"] if one["name"] == name}
    return System(name, own, {seed: seeds[seed]["questions"] for seed in own})


def _versions(seeds: Mapping[int, Mapping[str, Any]]) -> str:
    """A sentence that says where the code differed from that of most rows."""
    made: dict[str, dict[str, list[int]]] = {}  # by source, of each system the seeds
    for seed, frozen in seeds.items():
        for system in frozen["systems"]:
            for source in system["sources"]:
                made.setdefault(source, {}).setdefault(system["name"], []).append(seed)
    first, *others = sorted(made, key=lambda source: -sum(map(len, made[source].values())))
    if not others:
        return f"One version of the code ({first}) made all rows."
    told = "; ".join(
        f"{source} made {', '.join(f'{name} (seed {_listed(own)})' for name, own in made[source].items())}"
        for source in others
    )
    return f"**Not one version of the code made all rows** (by hash of the source): {first} made most of them, {told}."


def _figures(systems: Collection[System], base: System) -> str:
    measures = [measure for measure in METRICS if measure in (*MEANS, *RATES)]
    rows = [
        [_marked(system, base), _listed(system.frozen), *(system.value(measure) for measure in measures)]
        for system in systems
    ]
    return table(["system", "seeds", *(METRICS[measure] for measure in measures)], rows)


_COST_LEGEND = (
    "Means over seeds, of all stages that a policy came from. Tokens: what policies sampled for training, all agents "
    "together, with the tree search's played-out turns and what rewards asked the policy; a teacher's count nothing. "
    f"{MARK}: more than 10 % more or fewer tokens than {{base}} on the same seeds. Updates: of optimisers, warm-up "
    "included. Judge calls: groups of steps compared and steps verified, cached replies included. CPU-seconds: of all "
    "processes."
)


def _costs(systems: Collection[System], base: System) -> str:
    rows = []
    for system in systems:
        share = system.cost("tokens") / base.cost("tokens", list(system.frozen)) if base.cost("tokens") else math.nan
        cells = [f"{system.cost('tokens'):,.0f}", MISSING if math.isnan(share) else f"{100 * share:.0f} %"]
        rows.append([_marked(system, base), *cells, *(f"{system.cost(name):,.0f}" for name in _COSTS)])
    return table(["system", "tokens", f"of {base.name}'s", "updates", "judge calls", "CPU-seconds"], rows)


def _marked(system: System, base: System) -> str:
    """The system's name, with the mark where its tokens are not within the tolerance of the baseline's."""
    own, other = system.cost("tokens"), base.cost("tokens", list(system.frozen))
    return system.name if abs(own - other) <= TOLERANCE * other else f"{system.name} {MARK}"


_TEST_LEGEND = (
    "Difference to {base} on the same questions and seeds, with its 95 % bootstrap interval. p: two-sided, "
    "paired: a bootstrap over questions, which generalises to other questions under these seeds, and Student's t over "
    "the means of seeds, which generalises to other seeds. Holm: adjusted for all systems by one measure."
)


def _tests(systems: Mapping[str, System], base: System) -> Iterator[str]:
    for measure in TESTED:
        tests = {
            name: paired_tests(system.scores(measure, list(base.frozen)), base.scores(measure, list(system.frozen)))
            for name, system in systems.items()
            if system is not base and not np.isnan(system.scores(measure).values).all()
        }
        yield f"### {METRICS[measure]}"
        yield _test_table(measure, systems, {name: (test[0], test[2]) for name, test in tests.items()})
    for rate in RATES:
        own = {name: _rates(system, rate) for name, system in systems.items()}
        tests = {
            name: _over_seeds(own[name], own[base.name])
            for name, system in systems.items()
            if system is not base and own[name]
        }
        if all(math.isnan(test.difference) and math.isnan(test.p) for test in tests.values()):
            continue  # no seed in which the baseline and another have the rate: a table of dashes
        yield f"### {METRICS[rate]}"
        yield "By seed alone: a rate is of all steps of a seed."
        yield _test_table(rate, systems, {name: (None, test) for name, test in tests.items()})


def _test_table(
    measure: str, systems: Mapping[str, System], tests: Mapping[str, tuple[PairedTest | None, PairedTest]]
) -> str:
    """A row a system; `tests` are over questions, where there is one, and over seeds."""
    p = [[math.nan if test is None else test.p for test in pair] for pair in tests.values()]
    adjusted = [holm([pair[i] for pair in p]) for i in range(2)]
    rows = []
    for number, (name, pair) in enumerate(tests.items()):
        shown = pair[0] or pair[1]
        cells = [estimate(measure, shown.difference, shown.low, shown.high, signed=True)]
        for i in range(2):
            cells += [p_value(p[number][i]), p_value(adjusted[i][number])]
        rows.append([name, _listed(systems[name].frozen), *cells])
    return table(["system", "seeds", "difference", "p questions", "Holm", "p seeds", "Holm"], rows)


def _stopping(system: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"system": system["name"], **row} for row in system.get("stopping", [])]


def _rates(system: System, rate: str) -> dict[int, float]:
    """The rate of every seed that has one."""
    wrong, judged = (system.scores(count) for count in RATES[rate])
    sums = zip(wrong.seeds, np.nansum(wrong.values, axis=1), np.nansum(judged.values, axis=1), strict=True)
    return {seed: float(top / bottom) for seed, top, bottom in sums if bottom}


def _over_seeds(own: Mapping[int, float], other: Mapping[int, float]) -> PairedTest:
    seeds = [seed for seed in own if seed in other]
    return paired_t_test([own[seed] for seed in seeds], [other[seed] for seed in seeds])


_WARM_UP_LEGEND = (
    "Each trained policy and the first policy that it came from, in exact match. Brackets: 95 % interval over "
    "seeds, by Student's t; a gain is shown where it holds no 0."
)


def _warm_ups(systems: Mapping[str, System]) -> str:
    rows = []
    for name, system in systems.items():
        starts = {seed: frozen["warm_up"] for seed, frozen in system.frozen.items() if frozen["warm_up"]}
        if starts:
            after = _means(system)
            before = {seed: _means(systems[start])[seed] for seed, start in starts.items()}
            test = _over_seeds({seed: after[seed] for seed in before}, before)
            gains = ", ".join(figure("em", after[seed] - before[seed], signed=True) for seed in before)
            cells = [figure("em", float(np.mean([values[seed] for seed in before]))) for values in (before, after)]
            difference = estimate("em", test.difference, test.low, test.high, signed=True)
            rows.append([name, next(iter(starts.values())), *cells, difference, p_value(test.p), gains])
    return table(["system", "warm-up", "before", "after", "difference", "p seeds", "by seed"], rows, labels=2)


def _means(system: System) -> dict[int, float]:
    scores = system.scores("em")
    return dict(zip(scores.seeds, scores.means(scores.seeds), strict=True))


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def _number(value: float | None) -> float:
    return math.nan if value is None else value

"""Compare finished runs: `python -m evaluation.pages.compare RUN [RUN …] [--baseline NAME] [--metric f1]`.

A RUN is `runs/<experiment>` (all its seeds), `runs/<experiment>/seed<k>`, or either with `:<stage>` for one of its
evaluations. Each evaluation is an arm, named `<experiment>:<stage>`; the first is the baseline unless one is named.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import DataError, UserError
from common.files import atomic_write
from common.plain_text import visible
from common.terminal import error_line, say
from evaluation.results import Arm, find_arms, predictions, read_evaluation
from evaluation.statistics import (
    Floats,
    PairedTest,
    across_seeds,
    average_questions,
    average_seeds,
    bootstrap_interval,
    holm,
    paired_bootstrap,
    paired_t_test,
)
from evaluation.tables import METRICS, MISSING, estimate, figure, p_value, table

_SEED = 0  # of the bootstrap: the same runs always give the same table

Key = tuple[str, str, tuple[str, ...]]  # id, text, answers: worlds of two seeds may share ids, but not questions
Where = tuple[str, str]  # dataset, split
Tests = tuple[PairedTest, PairedTest, PairedTest]  # over questions: bootstrap, Student's t; over seeds: Student's t
_TESTS = ("bootstrap", "t-test", "seeds")

_EXPLANATION = (
    "Brackets: 95 % bootstrap interval over questions, after averaging each question over seeds. Difference: to the "
    "baseline, on the same questions. p: two-sided, paired. `bootstrap` and `t-test` sample questions and generalise "
    "to other questions under these seeds. `seeds` is a t-test over the seeds' means and generalises to other seeds. "
    "Holm: adjusted for all comparisons by one metric."
)


@dataclass(frozen=True, slots=True)
class Scores:
    """A metric of an arm on a dataset: `values` [K seeds, N questions], NaN where it does not apply."""

    seeds: list[int]
    questions: list[Key]
    values: Floats

    def averages(self, order: Sequence[Key]) -> Floats:
        """Mean over seeds of each question [N], in the given order."""
        position = {question: number for number, question in enumerate(self.questions)}
        return average_seeds(self.values)[[position[question] for question in order]]

    def means(self, seeds: Sequence[int]) -> Floats:
        """Mean over questions of each of some seeds [K], in the given order."""
        return average_questions(self.values)[[self.seeds.index(seed) for seed in seeds]]


def compare(arms: Sequence[Arm], *, baseline: str | None = None, metric: str = "em") -> str:
    """Markdown tables, one a dataset, of `metric` for each arm, and its difference to the baseline's.

    Raises:
        DataError: two runs share a name; no arm, or more than one, is called `baseline`; predictions are missing or
            lack the metric as a number; an arm and the baseline answered different questions.
    """
    arms = _distinct(arms)
    base = _baseline(arms, baseline)
    scores = _load(arms, metric)
    tests = {
        (where, arm): _tests(where, arm, by_arm[arm], base, by_arm[base])
        for where, by_arm in scores.items()
        if base in by_arm
        for arm in by_arm
        if arm != base
    }
    shown = _TESTS if any(test[-1].n > 1 for test in tests.values()) else _TESTS[:-1]
    adjusted = (holm([test[i].p for test in tests.values()]) for i in range(len(shown)))
    corrected = dict(zip(tests, zip(*adjusted, strict=True), strict=True))
    header = ["arm", "seeds", "n", METRICS.get(metric, metric), "sd of seeds", "difference"]
    header += [f"p {name}" for name in shown]
    several = [f"Holm {name}" for name in shown] if len(tests) > 1 else []
    by_seed = ["difference by seed"] if shown == _TESTS else []
    parts = [f"Baseline: {base}. {_EXPLANATION}"]
    for where, by_arm in scores.items():
        rows = []
        for arm, values in by_arm.items():
            cells = [arm, *_summary(values, metric), *_difference(tests.get((where, arm)), metric, len(shown))]
            cells += [p_value(p) for p in corrected.get((where, arm), [math.nan] * len(shown))] if several else []
            cells += [_by_seed(values, by_arm[base], metric) if (where, arm) in tests else MISSING] if by_seed else []
            rows.append(cells)
        parts += [f"## {METRICS.get(metric, metric)}, {'/'.join(where)}", table(header + several + by_seed, rows)]
    return "\n\n".join(parts)


def _distinct(arms: Sequence[Arm]) -> list[Arm]:
    """Arms without repetitions; figures are kept by name, so two runs of the same name would be merged."""
    named: dict[str, Arm] = {}
    for arm in arms:
        other = named.setdefault(arm.name, arm)
        if other != arm:
            folders = " and ".join(str(next(iter(same.artifacts.values()))) for same in (other, arm))
            raise DataError(f"two runs are called {arm.name} ({folders}): rename the folder of one, or leave it out")
    return list(named.values())


def _baseline(arms: Sequence[Arm], name: str | None) -> str:
    """The name of the arm called `name`, or of the only arm of that experiment or stage."""
    if name is None:
        return arms[0].name
    names = [arm.name for arm in arms]
    called = [name] if name in names else [arm for arm in names if name in arm.split(":")]
    if len(called) != 1:
        what = "several arms are" if called else "no arm is"
        raise DataError(f"{what} called {name!r}; choose one of: {', '.join(names)}")
    return called[0]


def _load(arms: Sequence[Arm], metric: str) -> dict[Where, dict[str, Scores]]:
    """Scores by dataset and arm, where the metric applies to any question."""
    scores: dict[Where, dict[str, Scores]] = {}
    figures: dict[str, None] = {}
    for arm in arms:
        by_seed: dict[Where, dict[int, dict[Key, float]]] = {}
        for seed, artifact in arm.artifacts.items():
            for row in read_evaluation(artifact)["rows"]:
                values: dict[Key, float] = {}
                for prediction in predictions(artifact, row["dataset"], row["split"]):
                    numbers = {name: float(v) for name, v in prediction.items() if isinstance(v, int | float)}
                    figures |= dict.fromkeys(numbers)
                    key = prediction["id"], prediction["question"], tuple(prediction["answers"])
                    values[key] = numbers.get(metric, math.nan)
                by_seed.setdefault((row["dataset"], row["split"]), {})[seed] = values
        for where, seeds in by_seed.items():
            questions = list(dict.fromkeys(question for values in seeds.values() for question in values))
            grid = np.array([[values.get(question, math.nan) for question in questions] for values in seeds.values()])
            if not np.isnan(grid).all():
                scores.setdefault(where, {})[arm.name] = Scores(list(seeds), questions, grid)
    if not scores:
        raise DataError(f"no question has the figure {metric!r}; there are: {', '.join(figures)}")
    return scores


def _tests(where: Where, arm: str, scores: Scores, base: str, baseline: Scores) -> Tests:
    if differ := set(scores.questions) ^ set(baseline.questions):
        ids = sorted({question[0] for question in differ})
        raise DataError(
            f"cannot pair {arm} with {base} on {'/'.join(where)}: {len(ids)} question ids differ ({ids[0]}, say); "
            "evaluate both on the same questions"
        )
    return paired_tests(scores, baseline)


def paired_tests(scores: Scores, baseline: Scores) -> Tests:
    """A measure of an arm against the baseline's, on the same questions."""
    a, b = (arm_scores.averages(baseline.questions) for arm_scores in (scores, baseline))
    seeds = [seed for seed in scores.seeds if seed in baseline.seeds]
    return (
        paired_bootstrap(a, b, seed=_SEED),
        paired_t_test(a, b),
        paired_t_test(scores.means(seeds), baseline.means(seeds)),
    )


def _summary(scores: Scores, metric: str) -> list[str]:
    """Cells: seeds, n, mean with interval, standard deviation over seeds."""
    averages = scores.averages(scores.questions)
    used = averages[~np.isnan(averages)]
    shown = estimate(metric, float(used.mean()), *bootstrap_interval(used, seed=_SEED))
    seeds = ", ".join(map(str, scores.seeds))
    return [seeds, str(len(used)), shown, figure(metric, across_seeds(scores.values)[1])]


def _difference(tests: Tests | None, metric: str, shown: int) -> list[str]:
    """Cells: difference with interval, and the first `shown` p-values."""
    if tests is None:
        return [figure(metric, None)] * (1 + shown)
    bootstrap = tests[0]
    difference = estimate(metric, bootstrap.difference, bootstrap.low, bootstrap.high, signed=True)
    return [difference, *(p_value(test.p) for test in tests[:shown])]


def _by_seed(scores: Scores, baseline: Scores, metric: str) -> str:
    """The difference of the means of each seed that both have, in the order of the seeds."""
    seeds = [seed for seed in scores.seeds if seed in baseline.seeds]
    differences = scores.means(seeds) - baseline.means(seeds)
    return ", ".join(figure(metric, float(one), signed=True) for one in differences) or MISSING


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m evaluation.pages.compare", description="Compare finished runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs/<experiment>[/seed<k>][:<stage>]")
    parser.add_argument("--baseline", metavar="NAME", help="arm, experiment or stage (default: the first arm)")
    parser.add_argument("--metric", default="em", help="a figure that predictions hold per question (default: em)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the Markdown there too")
    options = parser.parse_args(arguments)
    try:
        arms = [arm for run in options.runs for arm in find_arms(run)]
        text = compare(arms, baseline=options.baseline, metric=options.metric)
        if options.out:
            with atomic_write(options.out) as file:
                file.write(visible(f"# Comparison\n\n{text}\n"))
    except UserError as error:
        sys.exit(error_line(error))
    say(text)


if __name__ == "__main__":
    main()

"""The two arms that a page compares by itself, question by question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from evaluation.report.view_list import EpisodeList, differences
from evaluation.report.view_parts import stage_changes
from evaluation.report.view_run import Run
from evaluation.report.view_text import Row
from evaluation.tables import MISSING

_DIFFERENCES = 40  # questions in the table of two arms


def compared_arms(runs: Sequence[Run], page: EpisodeList) -> Row | None:
    """Where two arms differ: the last ones of two experiments with the same seed, or two evaluations of a run.

    `first`, `second`, on how many questions the second is `better` and `worse`, those `shown` and those `left_out`,
    as `evaluation.report.view_list:differences` has them; None where no two arms
    answered a question differently well.
    """
    for first, second in _pairs(runs, page):
        differing = differences(page, first, second)
        if differing:
            better = sum(two.row["em"] > one.row["em"] for _, one, two in differing)
            worse = sum(two.row["em"] < one.row["em"] for _, one, two in differing)
            told = {"first": first, "second": second, "better": better, "worse": worse}
            shown, rest = differing[:_DIFFERENCES], differing[_DIFFERENCES:]
            return told | {"shown": shown, "left_out": rest}
    return None


def _pairs(runs: Sequence[Run], page: EpisodeList) -> Iterator[tuple[str, str]]:
    """Pairs of arms, those that a reader wants to see compared first."""
    arms = {run.name: [arm for arm in page.arms if arm.startswith(_prefix(run, runs))] for run in runs}
    for seed in dict.fromkeys(run.seed for run in runs):
        yield from pairwise(arms[run.name][-1] for run in runs if run.seed == seed and arms[run.name])
    for run in runs:
        prefix = _prefix(run, runs)
        _, rows = stage_changes(run)
        yield from ((prefix + row[1], prefix + row[0]) for row in reversed(rows) if row[1] != MISSING)
        yield from reversed(list(pairwise(arms[run.name])))
    yield from pairwise(arms[run.name][-1] for run in runs if arms[run.name])


def _prefix(run: Run, runs: Sequence[Run]) -> str:
    """What comes before the names of a run's arms."""
    return f"{run.name}:" if len(runs) > 1 else ""

"""The two arms that a page compares by itself, question by question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from evaluation.tables import MISSING
from evaluation.view_list import EpisodeList, differences
from evaluation.view_parts import stage_changes
from evaluation.view_run import Run
from evaluation.view_text import Row

_DIFFERENCES = 40  # questions in the table of two arms


def compared_arms(runs: Sequence[Run], page: EpisodeList) -> Row | None:
    """Where two arms differ: the last evaluation and the one it is compared with, or the last of the first two runs.

    `first`, `second`, on how many questions the second is `better` and `worse`, those `shown`; None where no two arms
    of the page answered a question differently well.
    """
    for first, second in _pairs(runs, page):
        differing = differences(page, first, second)
        if differing:
            better = sum((two.row["em"] or 0) > (one.row["em"] or 0) for _, one, two in differing)
            worse = sum((two.row["em"] or 0) < (one.row["em"] or 0) for _, one, two in differing)
            told = {"first": first, "second": second, "better": better, "worse": worse}
            return told | {"shown": differing[:_DIFFERENCES], "left_out": max(0, len(differing) - _DIFFERENCES)}
    return None


def _pairs(runs: Sequence[Run], page: EpisodeList) -> Iterator[tuple[str, str]]:
    if len(runs) > 1:
        last = [[arm for arm in page.arms if arm.startswith(f"{run.name}:")][-1:] for run in runs]
        arms = [arm for found in last for arm in found]
        yield from pairwise(arms)
        return
    _, rows = stage_changes(runs[0])
    yield from ((row[1], row[0]) for row in reversed(rows) if row[1] != MISSING)
    yield from reversed(list(pairwise(page.arms)))

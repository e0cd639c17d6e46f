"""Change by each fitted stage: its evaluation against that of the stage it started from, paired by question."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.policy_ancestry import PolicyAncestry
from evaluation.results import predictions
from evaluation.statistics import paired_bootstrap
from evaluation.tables import METRICS, MISSING, estimate, figure, table

_METRICS = ("em", "f1")


def changes_table(rows: Sequence[Mapping[str, Any]], artifacts: Mapping[str, Path], names: Mapping[str, str]) -> str:
    """`changes` as a Markdown table; empty if there is none."""
    header, lines = changes(rows, artifacts, names)
    return table(header, lines, labels=3) if lines else ""


def changes(
    rows: Sequence[Mapping[str, Any]], artifacts: Mapping[str, Path], names: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Header and a line of cells for each dataset of every evaluation of a fitted stage.

    `artifacts` holds the folders by stage, every stage after those it depends on; `names` the display names of stages.
    """
    ancestry = PolicyAncestry.of(artifacts)
    evaluated = {(row["stage"], row["dataset"], row["split"]) for row in rows}
    lines: list[list[str]] = []
    for row in rows:
        stage, dataset, split = row["stage"], row["dataset"], row["split"]
        if ancestry.policy(stage):
            having = {other for other, *place in evaluated if place == [dataset, split]}
            start = _previous(ancestry, stage, {other for other, *_ in evaluated}, having)
            old = artifacts[start] if start and start in having else None
            cells = list(_differences(artifacts[stage], old, dataset, split))
            before = names.get(start, start) if start else MISSING
            lines.append([names.get(stage, stage), before, f"{dataset}/{split}", *cells])
    header = ["evaluation", "compared with", "dataset", *(METRICS[metric] for metric in _METRICS)]
    return header, lines


def _previous(
    ancestry: PolicyAncestry, stage: str, evaluations: Collection[str], having: Collection[str]
) -> str | None:
    """The evaluation that one of a fitted policy is compared with; None for the first policy.

    An earlier evaluation has only policies that this one's came from, or shares, such as a frozen generator; it may not
    share all. Preferred is one on the same dataset, then of the nearest policy, then one that reads the most similar
    stages.
    """
    own, came_from = ancestry.fitted(stage), ancestry.ancestors[stage]
    replaced = {other: ancestry.fitted(other) - own for other in evaluations if ancestry.fitted(other) <= came_from}

    def fitness(other: str) -> tuple[bool, int, int, str]:
        nearest = max(map(ancestry.order.index, replaced[other]))
        return other in having, nearest, -len({*ancestry.needs[other]} ^ {*ancestry.needs[stage]}), other

    return max((other for other, policies in replaced.items() if policies), key=fitness, default=None)


def _differences(artifact: Path, before: Path | None, dataset: str, split: str) -> Iterator[str]:
    """Each metric less that of the evaluation before, on the questions of both."""
    if before is None:
        yield from (figure(metric, None) for metric in _METRICS)
        return
    new, old = ({row["id"]: row for row in predictions(place, dataset, split)} for place in (artifact, before))
    for metric in _METRICS:
        shared = [id_ for id_ in new if id_ in old and None not in (new[id_][metric], old[id_][metric])]
        test = paired_bootstrap([new[i][metric] for i in shared], [old[i][metric] for i in shared], seed=0)
        yield estimate(metric, test.difference, test.low, test.high, signed=True)

"""What each fitted stage changed: its evaluation against that of the stage it started from, paired by question."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.results import predictions, read_manifest
from evaluation.statistics import paired_bootstrap
from evaluation.tables import METRICS, estimate, figure, table

_METRICS = ("em", "f1")


def changes_table(rows: Sequence[Mapping[str, Any]], artifacts: Mapping[str, Path]) -> str:
    """A line for each dataset of every evaluation of a fitted stage; empty if there is none.

    `artifacts` holds the folders by stage, every stage after those it depends on.
    """
    before = _previous({row["stage"] for row in rows}, artifacts)
    evaluated = {(row["stage"], row["dataset"], row["split"]) for row in rows}
    lines: list[list[str]] = []
    for row in rows:
        stage, dataset, split = row["stage"], row["dataset"], row["split"]
        if stage in before:
            start = before[stage]
            old = artifacts[start] if start and (start, dataset, split) in evaluated else None
            cells = list(_differences(artifacts[stage], old, dataset, split))
            lines.append([stage, start or figure("em", None), f"{dataset}/{split}", *cells])
    header = ["evaluation", "compared with", "dataset", *(METRICS[metric] for metric in _METRICS)]
    return table(header, lines, labels=3) if lines else ""


def _previous(evaluations: Collection[str], artifacts: Mapping[str, Path]) -> dict[str, str | None]:
    """The evaluation of the nearest ancestor of the policy that each evaluation measures, None for the first policy.

    An evaluation measures the last fitted stage among its inputs; evaluations without one are left out.
    """
    stages = {folder.name: stage for stage, folder in artifacts.items()}
    manifests = {stage: read_manifest(folder) for stage, folder in artifacts.items()}
    needs = {
        stage: [stages[used["artifact"]] for used in manifest.get("inputs", {}).values() if used["artifact"] in stages]
        for stage, manifest in manifests.items()
    }
    ancestors: dict[str, set[str]] = {}
    for stage in artifacts:
        ancestors[stage] = set(needs[stage]).union(*(ancestors[need] for need in needs[stage]))
    order = list(artifacts)
    policy_of: dict[str, str] = {}
    for stage in evaluations:
        fitted = [need for need in needs[stage] if manifests[need].get("kind") == "fit"]
        if fitted:
            policy_of[stage] = max(fitted, key=order.index)
    return {
        stage: max(
            (other for other in policy_of if policy_of[other] in ancestors[policy]),
            key=lambda other: order.index(policy_of[other]),
            default=None,
        )
        for stage, policy in policy_of.items()
    }


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

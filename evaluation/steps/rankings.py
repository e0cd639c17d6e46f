"""The step rankings of finished runs, every arm measured over all its seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datamodules.records import read_rows
from evaluation.policy_ancestry import PolicyAncestry
from evaluation.steps.step_auc import BASELINES, measure_groups
from evaluation.steps.step_calibration import calibration

Row = dict[str, Any]
Stage = tuple[str, int, str, Path]  # experiment, seed, stage, artifact folder


def rankings(stages: Iterable[Stage]) -> list[Row]:
    """One entry for each step ranking of an experiment.

    An entry has `experiment`, `stage`, `seeds`, `scorers`; `judged_steps`, by seed, the distinct steps that a judge was
    shown in all stages that the ranking came from (None where none counted them); `groups` of all seeds together
    (`evaluation.steps.step_auc:measure_groups`); and `calibration`, by scorer a list for each seed
    (`evaluation.steps.step_calibration:calibration`). A ranking that several experiments share is listed for the first.
    """
    runs: dict[tuple[str, int], dict[str, Path]] = {}
    for experiment, seed, stage, artifact in stages:
        runs.setdefault((experiment, seed), {})[stage] = artifact
    arms: dict[tuple[str, str], dict[int, Path]] = {}
    for (experiment, seed), artifacts in runs.items():
        for stage, artifact in artifacts.items():
            if (artifact / "data" / "step_ranking.json").exists():
                arms.setdefault((experiment, stage), {})[seed] = artifact
    entries: list[Row] = []
    seen: set[Path] = set()
    for (experiment, stage), artifacts in arms.items():
        if not seen.issuperset(artifacts.values()):
            seen.update(artifacts.values())
            judged = [judged_steps(PolicyAncestry.of(runs[experiment, seed]), stage) for seed in artifacts]
            entries.append({"experiment": experiment, "stage": stage, "judged_steps": judged, **_measured(artifacts)})
    return entries


def judged_steps(ancestry: PolicyAncestry, stage: str) -> int | None:
    """The distinct steps that were judged in the stages that a stage came from; None where none of them counted."""
    costs = [ancestry.manifests[before].get("costs") or {} for before in ancestry.ancestors[stage]]
    counted = [cost["judged_steps"] for cost in costs if "judged_steps" in cost]
    return sum(counted) if counted else None


def by_seed(ranking: Mapping[str, Any], group: str, scorer: str) -> dict[int, float]:
    """The AUC of a score in every seed that has one."""
    for found in ranking["groups"]:
        if found["group"] == group:
            figures = found["scorers"][scorer]
            values = figures.get("auc_seeds", [figures["auc"]])
            return {seed: value for seed, value in zip(ranking["seeds"], values, strict=True) if value is not None}
    return {}


def arm_label(ranking: Mapping[str, Any], scorer: str) -> str:
    """The ranking's display name or else its experiment, with the scorer's where that is not just the reward model."""
    name = ranking.get("name", ranking["experiment"])
    return name if scorer == "prm" else f"{name}: {scorer}"


def _measured(artifacts: Mapping[int, Path]) -> Row:
    runs = [list(read_rows(artifact / "data" / "steps.jsonl", None)) for artifact in artifacts.values()]
    scorers = [name for name in runs[0][0]["scores"] if name not in BASELINES]
    measured = {
        "seeds": list(artifacts),
        "scorers": scorers,
        "groups": measure_groups(runs, scorers),
        "calibration": {name: [calibration(rows, name) for rows in runs] for name in scorers},
    }
    return rounded(measured)


def rounded(value: Any) -> Any:
    """Figures rounded to five digits, to keep the repository small; NaN becomes None."""
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, Sequence) and not isinstance(value, str) else value

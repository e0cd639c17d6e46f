"""Table of a sweep: each arm's evaluations over its seeds, with intervals and tests against the first arm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evaluation.pages.compare import compare
from evaluation.results import Arm, read_results


def sweep_table(arms: Mapping[str, Mapping[int, Path]], metric: str) -> str:
    """Markdown tables of arms, each with the folder of its run for each seed.

    An evaluation that is the same artifact in all arms is left out, unless all are.

    Raises:
        DataError: a run is unfinished or damaged; as `evaluation.pages.compare:compare`.
    """
    found: dict[str, dict[str, dict[int, Path]]] = {}  # by stage and arm
    for arm, folders in arms.items():
        for seed, folder in folders.items():
            results = read_results(folder)
            for stage in dict.fromkeys(row["stage"] for row in results["rows"]):
                artifact = (folder / results["artifacts"][stage]).resolve()
                found.setdefault(stage, {}).setdefault(arm, {})[seed] = artifact
    differ = {stage: by_arm for stage, by_arm in found.items() if len({*map(_places, by_arm.values())}) > 1} or found
    several = len(differ) > 1
    return compare(
        [
            Arm(f"{arm}:{stage}" if several else arm, next(iter(arms[arm].values())).parent.name, stage, artifacts)
            for stage, by_arm in differ.items()
            for arm, artifacts in by_arm.items()
        ],
        metric=metric,
    )


def _places(artifacts: Mapping[int, Path]) -> frozenset[Path]:
    return frozenset(artifacts.values())

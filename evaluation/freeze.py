"""Freeze results of finished runs: `python -m evaluation.freeze RUN [RUN …] --out FILE.json --title … --command …`.

The JSON holds the question, command, commit, versions and machine, the rows of results, when policies stop by number of
hops, seconds and metrics of every stage, and with `--metric` paired tests against the first arm or the one that
`--baseline` names. `evaluation.page` makes a page of it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import write_json
from evaluation.compare import compare
from evaluation.evidence import stopping_by_hops
from evaluation.results import find_arms, find_stages, read_evaluation, read_json


def freeze(
    runs: Sequence[str],
    *,
    title: str,
    command: str,
    question: str = "",
    machine: str | None = None,
    metrics: Sequence[str] = (),
    baseline: str | None = None,
) -> dict[str, Any]:
    """Rows and notes of the runs' evaluations, and their stages, with all commits and versions of their manifests.

    Notes are those of the first seed. `machine` defaults to a description of this one.

    Raises:
        DataError: there is no such run, or it is unfinished; the arms cannot be compared.
    """
    arms = [arm for run in runs for arm in find_arms(run)]
    evaluations = [(arm, seed, artifact) for arm in arms for seed, artifact in arm.artifacts.items()]
    manifests = [read_json(artifact / "manifest.json") for _, _, artifact in evaluations]
    versions = [manifest["versions"] for manifest in manifests]
    libraries = dict.fromkeys(name for used in versions for name in used)
    rows, stopping, notes = [], [], {}
    for arm, seed, artifact in evaluations:
        results = read_evaluation(artifact)
        place = {"experiment": arm.experiment, "seed": seed, "stage": arm.stage}
        rows += [place | row for row in results["rows"]]
        stopping += [place | group for group in stopping_by_hops(results["groups"])]
        if seed == min(arm.artifacts):
            notes[f"{arm.name}, seed {seed}"] = results["notes"]
    return {
        "title": title,
        "question": question,
        "command": command,
        "commit": _joined(manifest["commit"] or "unknown" for manifest in manifests),
        "seeds": sorted({seed for _, seed, _ in evaluations}),
        "machine": machine or f"{os.cpu_count()} CPU cores, {platform.system()} {platform.machine()}",
        "versions": {name: _joined(used.get(name, "none") for used in versions) for name in libraries},
        "rows": rows,
        "stopping": stopping,
        "comparisons": [compare(arms, baseline=baseline, metric=metric) for metric in metrics],
        "stages": list(_stages(runs)),
        "notes": notes,
    }


def _stages(runs: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Seconds and metrics of every stage; a stage that several experiments share is listed for the first."""
    seen: set[Path] = set()
    for experiment, seed, stage, artifact in (entry for run in runs for entry in find_stages(run)):
        if artifact not in seen:
            seen.add(artifact)
            manifest = read_json(artifact / "manifest.json")
            results = {"seconds": manifest.get("seconds"), "metrics": manifest.get("metrics", {})}
            yield {"experiment": experiment, "seed": seed, "stage": stage, **results}


def _joined(values: Iterable[str]) -> str:
    """The distinct values: reused artifacts may come from several commits and versions."""
    return ", ".join(dict.fromkeys(values))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m evaluation.freeze", description="Freeze results of runs as JSON.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs/<experiment>[/seed<k>][:<stage>]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--title", required=True)
    parser.add_argument("--command", required=True, help="the command that made the run")
    parser.add_argument("--question", default="", help="the question that the run answers")
    parser.add_argument("--machine", help="description of the machine (default: of this one)")
    parser.add_argument("--metric", action="append", default=[], help="compare the arms by this; may be repeated")
    parser.add_argument("--baseline", help="the arm to compare with (default: the first)")
    options = parser.parse_args(arguments)
    try:
        frozen = freeze(
            options.runs,
            title=options.title,
            command=options.command,
            question=options.question,
            machine=options.machine,
            metrics=options.metric,
            baseline=options.baseline,
        )
        write_json(options.out, frozen)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

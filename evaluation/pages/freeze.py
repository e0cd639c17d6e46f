"""Freeze results of finished runs: `python -m evaluation.pages.freeze RUN [RUN …] --out FILE --title … --command …`.

The JSON holds the question, command, commit, versions and machine, the rows of results, when policies stop by number of
hops, step rankings measured over all seeds, seconds and metrics of every stage, and with `--metric` paired tests
against the first arm, or against each that `--baseline` names. `evaluation.pages.page` makes a page of it, with the
figures that `--figure` names.
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
from common.manifests import load_manifest
from common.terminal import error_line
from evaluation.evidence import stopping_by_hops
from evaluation.lineage import Lineage
from evaluation.pages.compare import compare
from evaluation.pages.comparison import write_frozen
from evaluation.pages.figures import FIGURES, draw
from evaluation.results import Arm, find_arms, find_stages, read_evaluation
from evaluation.steps.rankings import rankings


def freeze(
    runs: Sequence[str],
    *,
    title: str,
    command: str,
    question: str = "",
    machine: str | None = None,
    metrics: Sequence[str] = (),
    baselines: Sequence[str | None] = (None,),
    figures: Sequence[str] = (),
) -> dict[str, Any]:
    """Rows and notes of the runs' evaluations, and their stages, with all commits and versions of their manifests.

    `costs` are the accounts of the policies that were evaluated (`evaluation.lineage`). Notes are those of the first
    seed. `machine` defaults to a description of this one. `figures` are as in
    `evaluation.pages.figures:draw`; the first stands below the answer of the page.

    Raises:
        DataError: there is no such run, or it is unfinished; the arms cannot be compared; the runs hold nothing for a
            figure.
    """
    entries = [entry for run in runs for entry in find_stages(run)]
    ranked = rankings(entries)
    arms = [arm for run in runs for arm in _arms(run, required=not ranked)]
    evaluations = [(arm, seed, artifact) for arm in arms for seed, artifact in arm.artifacts.items()]
    places = {(ranking["experiment"], ranking["stage"]) for ranking in ranked}
    measured = [(seed, artifact) for _, seed, artifact in evaluations]
    measured += [(seed, artifact) for experiment, seed, stage, artifact in entries if (experiment, stage) in places]
    manifests = [load_manifest(artifact, "commit", "versions") for _, artifact in measured]
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
    frozen = {
        "title": title,
        "question": question,
        "command": command,
        "commit": _joined(manifest["commit"] or "unknown" for manifest in manifests),
        "seeds": sorted({seed for seed, _ in measured}),
        "machine": machine or f"{os.cpu_count()} CPU cores, {platform.system()} {platform.machine()}",
        "versions": {name: _joined(used.get(name, "none") for used in versions) for name in libraries},
        "figures": list(figures),
        "rows": rows,
        "stopping": stopping,
        "rankings": ranked,
        "costs": list(_costs(arms, entries)),
        "comparisons": [compare(arms, baseline=one, metric=metric) for one in baselines for metric in metrics],
        "stages": list(_stages(entries)),
        "notes": notes,
    }
    for asked in figures:
        draw(asked, frozen)  # now, while the runs are at hand, not when the page is made
    return frozen


def _arms(run: str, *, required: bool) -> list[Arm]:
    """The evaluations of a run; one that only ranks steps may have none, unless they are `required`."""
    evaluated = any((artifact / "data" / "results.json").exists() for *_, artifact in find_stages(run))
    return find_arms(run) if evaluated or required else []


def _costs(arms: Iterable[Arm], entries: Iterable[tuple[str, int, str, Path]]) -> Iterator[dict[str, Any]]:
    """What making each evaluated policy cost; `last_tokens` are those of the stage that made it, such as reinforcement.

    Runs of a version without accounts have none.
    """
    runs: dict[tuple[str, int], dict[str, Path]] = {}
    for experiment, seed, stage, artifact in entries:
        runs.setdefault((experiment, seed), {})[stage] = artifact
    lineages = {run: Lineage.of(artifacts) for run, artifacts in runs.items()}
    for arm in arms:
        for seed in arm.artifacts:
            lineage = lineages[arm.experiment, seed]
            policy = lineage.policy(arm.stage)
            own = lineage.manifests[policy].get("accounts") if policy else None
            if own:
                spent = lineage.accounts(arm.stage)
                spent["tokens"] = sum(spent["tokens"].values())
                place = {"experiment": arm.experiment, "seed": seed, "stage": arm.stage}
                yield place | {"last_tokens": sum(own["tokens"].values())} | spent


def _stages(entries: Iterable[tuple[str, int, str, Path]]) -> Iterator[dict[str, Any]]:
    """Seconds, accounts and metrics of every stage; a stage that several experiments share is listed for the first."""
    seen: set[Path] = set()
    for experiment, seed, stage, artifact in entries:
        if artifact not in seen:
            seen.add(artifact)
            manifest = load_manifest(artifact)
            results = {name: manifest.get(name) or {} for name in ("accounts", "metrics")}
            yield {
                "experiment": experiment,
                "seed": seed,
                "stage": stage,
                "seconds": manifest.get("seconds"),
                **results,
            }


def _joined(values: Iterable[str]) -> str:
    """The distinct values: reused artifacts may come from several commits and versions."""
    return ", ".join(dict.fromkeys(values))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.pages.freeze", description="Freeze results of runs as JSON."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs/<experiment>[/seed<k>][:<stage>]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--title", required=True)
    parser.add_argument("--command", required=True, help="the command that made the run")
    parser.add_argument("--question", default="", help="the question that the run answers")
    parser.add_argument("--machine", help="description of the machine (default: of this one)")
    parser.add_argument("--metric", action="append", default=[], help="compare the arms by this; may be repeated")
    parser.add_argument(
        "--baseline", action="append", help="an arm to compare with (default: the first); may be repeated"
    )
    known = ", ".join(FIGURES)
    parser.add_argument(
        "--figure", action="append", default=[], help=f"one of {known}, or NAME=ARM,ARM for some; may be repeated"
    )
    options = parser.parse_args(arguments)
    try:
        frozen = freeze(
            options.runs,
            title=options.title,
            command=options.command,
            question=options.question,
            machine=options.machine,
            metrics=options.metric,
            baselines=options.baseline or (None,),
            figures=options.figure,
        )
        write_frozen(options.out, frozen)
    except UserError as error:
        sys.exit(error_line(error))


if __name__ == "__main__":
    main()

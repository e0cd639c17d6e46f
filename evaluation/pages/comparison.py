"""Freeze one seed of a comparison: `python -m evaluation.pages.comparison RUN [RUN …] --baseline NAME --out FILE …`.

RUN is `runs/<experiment>/seed<k>`, or one evaluation of it with `:<stage>`. A system is an evaluation `eval_<name>` of
a fitted policy on the common benchmark (a teacher is none); in runs of several experiments its name is
`<experiment>:<name>`. The JSON holds each system's figures for every question, when it stops by number of hops, what
making its policy cost, and the versions of the code; seeds are frozen one by one, and `evaluation.pages.page` makes one
page of all that lie in a folder, with the figures that `--figure` names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import DataError, UserError
from common.files import atomic_write
from common.manifests import load_manifest
from common.seeds import stable_hash
from common.terminal import error_line
from evaluation.evidence import stopping_by_hops
from evaluation.lineage import Lineage
from evaluation.pages.comparison_rows import results_of
from evaluation.pages.figures import FIGURES, draw
from evaluation.results import find_arms, find_stages, predictions, read_evaluation
from evaluation.scoring import RATES

MEANS = ("em", "f1", "cover", "searches", "flawed", "unresolved", "valid_steps", "true_steps")
COUNTS = tuple(count for counts in RATES.values() for count in counts)
SCHEMA = "comparison/1"
_VERIFIER = "verifier/"
_PREFIX = "eval_"
_LIST = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")  # no string in JSON has a line break


def freeze_seed(
    runs: Sequence[str],
    *,
    baseline: str,
    benchmark: str,
    title: str,
    question: str,
    command: str,
    machine: str | None = None,
    figures: Sequence[str] = ("arms",),
) -> dict[str, Any]:
    """One seed of a comparison as JSON, see the module.

    Args:
        runs: `runs/<experiment>/seed<k>[:<stage>]` each, all of one seed. What runs share is taken from the first.
        baseline: the system that the others are compared with, by name.
        benchmark: `<dataset>/<split>` on which all systems are evaluated.
        title: of the page.
        question: what the comparison answers.
        command: what made the runs.
        machine: where; by default a description of this one.
        figures: of the page, as in `evaluation.pages.figures:draw`; the first stands below the answer.

    Raises:
        DataError: a run is unfinished or not of one seed, no system was evaluated on the benchmark, or the baseline
            was not; systems answered different questions; a stage has no accounts; the runs hold nothing for a figure.
    """
    stages = [stage for run in runs for stage in find_stages(run)]
    seeds = {seed for _, seed, _, _ in stages}
    if len(seeds) != 1:
        raise DataError(
            f"{', '.join(runs)}: {len(seeds)} finished seeds: freeze one at a time, runs/<experiment>/seed<k>"
        )
    experiments = list(dict.fromkeys(experiment for experiment, *_ in stages))
    place: dict[Path, str] = {}  # of every artifact, its stage
    for experiment, _, stage, artifact in stages:
        place.setdefault(artifact, stage if len(experiments) == 1 else f"{experiment}:{stage}")
    lineage = Lineage.of({stage: artifact for artifact, stage in place.items()})
    names, artifacts = dict[str, str](), dict[str, Path]()
    for name, artifact in _evaluations(runs, benchmark):
        stage = place[artifact]
        if lineage.policy(stage) and stage not in names:
            names[stage] = name.removeprefix(f"{experiments[0]}:") if len(experiments) == 1 else name
            artifacts[stage] = artifact
    if baseline not in names.values():
        raise DataError(f"no system {baseline!r} on {benchmark}; there are: {', '.join(names.values()) or 'none'}")
    systems = [_system(stage, names, artifacts[stage], lineage, benchmark) for stage in names]
    questions = systems[0]["questions"]
    for system in systems:
        if system.pop("questions") != questions:
            raise DataError(f"{system['name']} answered other questions of {benchmark} than {systems[0]['name']}")
    frozen = {
        "schema": SCHEMA,
        "title": title,
        "question": question,
        "experiment": ", ".join(experiments),
        "seed": seeds.pop(),
        "benchmark": benchmark,
        "baseline": baseline,
        "command": command,
        "machine": machine or f"{os.cpu_count()} CPU cores, {platform.system()} {platform.machine()}",
        "versions": load_manifest(artifacts[next(iter(names))], "versions")["versions"],
        "figures": list(figures),
        "questions": questions,
        "systems": systems,
        "verifiers": dict(_verifiers(lineage)),
    }
    results = results_of([frozen])
    for asked in figures:
        draw(asked, results)  # a page cannot be made where a figure has nothing to show
    return frozen


def _evaluations(runs: Sequence[str], benchmark: str) -> Iterator[tuple[str, Path]]:
    """`<experiment>:<name>` and artifact of every `eval_<name>` on the benchmark."""
    for arm in (arm for run in runs for arm in find_arms(run)):
        for artifact in (path.resolve() for path in arm.artifacts.values()):
            if arm.stage.startswith(_PREFIX) and _on(benchmark, read_evaluation(artifact)["rows"]):
                yield f"{arm.experiment}:{arm.stage.removeprefix(_PREFIX)}", artifact


def _on(benchmark: str, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if f"{row['dataset']}/{row['split']}" == benchmark]


def _system(stage: str, names: Mapping[str, str], artifact: Path, lineage: Lineage, benchmark: str) -> dict[str, Any]:
    """A system's figures by question. Its warm-up is the first policy it came from that was evaluated, if another."""
    dataset, _, split = benchmark.partition("/")
    rows = list(predictions(artifact, dataset, split))
    before = lineage.before(stage, list(names))
    return {
        "name": names[stage],
        "warm_up": names[before[0]] if before else None,
        "commit": lineage.manifests[stage].get("commit"),
        "sources": lineage.sources(stage),
        "accounts": lineage.accounts(stage),
        "values": {name: [_rounded(row.get(name)) for row in rows] for name in (*MEANS, *COUNTS)},
        "stopping": list(stopping_by_hops(_on(benchmark, read_evaluation(artifact)["groups"]))),
        "questions": [f"{stable_hash(row['id'], row['question'], *row['answers']):016x}"[:12] for row in rows],
    }


def _rounded(value: float | None) -> float | int | None:
    """Short in JSON: four digits, whole numbers without a point."""
    if value is None:
        return None
    return int(value) if value == math.floor(value) else round(value, 4)


def _verifiers(lineage: Lineage) -> Iterator[tuple[str, float | None]]:
    """The metrics `verifier/…` of all stages, by stage: how far each verifier agrees with the truth."""
    for stage, manifest in lineage.manifests.items():
        for name, value in manifest.get("metrics", {}).items():
            if name.startswith(_VERIFIER):
                yield f"{stage}/{name.removeprefix(_VERIFIER)}", value


def write_frozen(path: Path, frozen: Mapping[str, Any]) -> None:
    """Write frozen JSON with every list of figures on one line, so that a version system shows what changed."""
    text = json.dumps(frozen, indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as file:
        file.write(_LIST.sub(lambda match: "[" + re.sub(r"\s*\n\s*", " ", match[1]) + "]", text) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m evaluation.pages.comparison", description="Freeze a seed as JSON.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs/<experiment>/seed<k>[:<stage>]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="docs/results/<name>/seed<k>.json")
    parser.add_argument("--baseline", required=True, metavar="NAME", help="the system that others are compared with")
    parser.add_argument("--benchmark", default="world/test", metavar="DATASET/SPLIT", help="default: world/test")
    parser.add_argument("--title", required=True)
    parser.add_argument("--command", required=True, help="the command that made the run")
    parser.add_argument("--question", default="", help="the question that the comparison answers")
    parser.add_argument("--machine", help="description of the machine (default: of this one)")
    known = ", ".join(FIGURES)
    parser.add_argument("--figure", action="append", help=f"one of {known} (default: arms); may be repeated")
    options = vars(parser.parse_args(arguments))
    runs, out, figures = options.pop("runs"), options.pop("out"), options.pop("figure") or ["arms"]
    try:
        write_frozen(out, freeze_seed(runs, **options, figures=figures))
    except UserError as error:
        sys.exit(error_line(error))


if __name__ == "__main__":
    main()

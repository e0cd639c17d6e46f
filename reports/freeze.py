"""Keep a finished run's results in the repository: `python -m reports.freeze RUN OUT.json --title … --command …`.

The JSON holds all that `reports.page` prints: what was asked, how it was run, on what, and the rows.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envs.errors import UserError
from envs.files import write_json
from reports.results import find_arms, read_evaluation, read_json


def freeze(run: str, *, title: str, command: str, question: str = "", machine: str | None = None) -> dict[str, Any]:
    """Rows and notes of a run's evaluations, with every commit and version that their manifests name.

    `machine` is this one in a few words, unless it is given.

    Raises:
        DataError: there is no such run, or it is unfinished.
    """
    evaluations = [(arm, seed, artifact) for arm in find_arms(run) for seed, artifact in arm.artifacts.items()]
    manifests = [read_json(artifact / "manifest.json") for _, _, artifact in evaluations]
    versions = [manifest["versions"] for manifest in manifests]
    libraries = dict.fromkeys(name for one in versions for name in one)
    rows, notes = [], {}
    for arm, seed, artifact in evaluations:
        results = read_evaluation(artifact)
        rows += [{"experiment": arm.experiment, "seed": seed, "stage": arm.stage, **row} for row in results["rows"]]
        notes[f"{arm.stage}, seed {seed}"] = results["notes"]
    return {
        "title": title,
        "question": question,
        "command": command,
        "commit": _all(manifest["commit"] or "unknown" for manifest in manifests),
        "seeds": sorted({seed for _, seed, _ in evaluations}),
        "machine": machine or f"{os.cpu_count()} CPU cores, {platform.system()} {platform.machine()}",
        "versions": {name: _all(one.get(name, "none") for one in versions) for name in libraries},
        "rows": rows,
        "notes": notes,
    }


def _all(values: Iterable[str]) -> str:
    """What reused artifacts were made with may differ; then all of it is said."""
    return ", ".join(dict.fromkeys(values))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m reports.freeze", description="Keep a run's results as JSON.")
    parser.add_argument("run", metavar="RUN", help="runs/<experiment>[/seed<k>][:<stage>]")
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--title", required=True)
    parser.add_argument("--command", required=True, help="what made the run")
    parser.add_argument("--question", default="", help="what the run was to find out")
    parser.add_argument("--machine", help="the machine, in a few words (default: this one)")
    options = parser.parse_args(arguments)
    try:
        frozen = freeze(
            options.run,
            title=options.title,
            command=options.command,
            question=options.question,
            machine=options.machine,
        )
        write_json(options.out, frozen)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

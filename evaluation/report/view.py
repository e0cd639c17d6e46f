"""Look at runs in a browser: `python -m evaluation.report.view RUN [RUN …] [--out FILE] [--no-browser]`.

A RUN is `runs/<experiment>` (all its seeds) or `runs/<experiment>/seed<k>`, finished or running, either with `:<stage>`
for one of its evaluations. One seed's page is its `report.html`, made anew; several make a page that compares them.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import DataError, UserError
from common.terminal import error_line, say
from evaluation.report.page import write_page
from evaluation.report.run import Run, read_run
from evaluation.results import run_folders


def find_runs(name: str) -> list[Run]:
    """The runs that a name on the command line means, a seed each.

    Raises:
        DataError: there is none, or no evaluation of that name is finished.
    """
    runs = [read_run(folder) for folder in run_folders(name)[1].values()]
    stage = _stage(name)
    if stage:
        runs = [replace(run, results={stage: run.results[stage]}) for run in runs if stage in run.results]
    if not runs:
        raise DataError(
            f"{name}: " + (f"no seed has finished {stage}" if stage else "there is no folder seed<k> in it")
        )
    return runs


def _stage(name: str) -> str:
    """The stage that is asked for, after a colon; empty for all."""
    return name.partition(":")[2]


def merged(runs: Iterable[Run]) -> list[Run]:
    """Each run once, with all of its evaluations that were asked for.

    Runs of the same name lie in different output folders: theirs come before it.
    """
    by_folder: dict[Path, Run] = {}
    for run in runs:
        before = by_folder.get(run.folder)
        by_folder[run.folder] = run if before is None else replace(before, results=before.results | run.results)
    names = Counter(run.name for run in by_folder.values())
    return [
        run if names[run.name] == 1 else replace(run, name=f"{run.output}/{run.name}") for run in by_folder.values()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m evaluation.report.view", description="Look at runs in a browser.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs/<experiment>[/seed<k>][:<stage>]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: report.html of a run, else comparison.html")
    parser.add_argument("--no-browser", action="store_true", help="write the page and do not open it")
    options = parser.parse_args(arguments)
    try:
        runs = merged(run for name in options.runs for run in find_runs(name))
        whole = len(runs) == 1 and not any(_stage(name) for name in options.runs)
        place = runs[0].folder if len(runs) == 1 else runs[0].folder.parents[1]
        path = options.out or (runs[0].folder / "report.html" if whole else place / "comparison.html")
        write_page(path, runs)
    except UserError as error:
        sys.exit(error_line(error))
    say(str(path))
    if not options.no_browser:
        webbrowser.open(path.resolve().as_uri())


if __name__ == "__main__":
    main()

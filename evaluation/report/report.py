"""The results of one run of an experiment: its rows, a page to read, and the rows of all its seeds together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from common.files import atomic_write, write_json
from common.plain_text import one_line, visible
from evaluation.pages.ranking_tables import ranking_parts
from evaluation.report.page import write_page
from evaluation.report.run import Run, named_rankings, read_run
from evaluation.report.stage_changes import changes_table
from evaluation.results import (
    by_dataset,
    read_evaluation,
    read_results,
    result_row,
    seed_folders,
    shown_row,
)
from evaluation.steps.rankings import rankings
from evaluation.steps.step_page import answers
from evaluation.tables import LEGEND, metrics_table

Row = dict[str, Any]
_IN_FORMAT = 0.1  # share of answers; below it a line gives the reason of a table's low figures


def write(runs: Path, experiment: str, seed: int, artifacts: Mapping[str, Path], *, question: str = "") -> str:
    """Write this seed's `results.json`, `report.md`, `report.html`, and all seeds' results.

    Returns the headline table. Same artifacts, same bytes: rows of this seed are replaced, those of others kept.

    `artifacts` are folders by stage, in the order they were made; evaluations hold `data/results.json`. `question` is
    what the experiment is to find out, the first line of the report.

    Raises:
        DataError: an evaluation's results are malformed.
    """
    folder = runs / experiment / f"seed{seed}"
    evaluations = {s: read_evaluation(a) for s, a in artifacts.items() if (a / "data" / "results.json").exists()}
    measured, groups = (
        [
            {**row, "experiment": experiment, "seed": seed, "stage": stage}
            for stage, results in evaluations.items()
            for row in results[part]
        ]
        for part in ("rows", "groups")
    )
    notes = {stage: results["notes"] for stage, results in evaluations.items()}
    rows, shown = [result_row(row) for row in measured], [shown_row(row) for row in measured]
    places = {stage: Path(os.path.relpath(path, folder)).as_posix() for stage, path in artifacts.items()}
    content = {"question": question, "rows": rows, "groups": groups, "notes": notes, "artifacts": places}
    write_json(folder / "results.json", content)
    ranked = rankings((experiment, seed, stage, path) for stage, path in artifacts.items())
    run, weak = read_run(folder), out_of_format(measured)
    with atomic_write(folder / "report.md") as file:
        text = _page(f"{experiment}, seed {seed}", question, run, shown, artifacts, named_rankings([run], ranked), weak)
        file.write(visible(text))
    write_page(folder / "report.html", [run], ranked=ranked)
    _gather(runs / experiment)
    tables = [f"{name}\n{metrics_table({'stage': 'stage'}, part)}" for name, part in by_dataset(shown).items()]
    return "\n\n".join([*tables, *weak, f"report: {folder / 'report.md'}"])


def out_of_format(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each evaluation whose model hardly follows the format: a table alone would not give the reason."""
    return [
        f"{row['stage']} on {one_line(row['dataset'])}: {100 * row['valid_episodes']:.0f} % of the answers follow the "
        "format, so the figures say little about the method. An untrained model needs examples in its instruction, a "
        "warm-up or more parameters; one that lost the format in reinforcement needs a reward for it"
        for row in rows
        if (share := row.get("valid_episodes")) is not None and share < _IN_FORMAT
    ]


def _gather(experiment: Path) -> None:
    """Rows of all finished seeds in one file; the lock keeps two seeds that finish at once from losing rows."""
    with FileLock(experiment / ".results.lock"):
        finished = [folder for folder in seed_folders(experiment).values() if (folder / "results.json").exists()]
        rows = [row for folder in finished for row in read_results(folder)["rows"]]
        write_json(experiment / "results.json", {"rows": rows})


def _page(
    title: str,
    question: str,
    run: Run,
    rows: Sequence[Row],
    artifacts: Mapping[str, Path],
    ranked: Sequence[Row],
    weak: Sequence[str],
) -> str:
    """The run as text: what it asks, its results, what each stage changed, what each reward model is worth."""
    otherwise = [f"{name} was made {stage.otherwise}" for name, stage in run.stages.items() if stage.otherwise]
    parts = [f"# {title}", *filter(None, [question])]
    parts += [f"Reused: {'; '.join(otherwise)}. `--force NAME` runs a stage again."] if otherwise else []
    for name, part in by_dataset(rows).items():
        shown = [{**row, "stage": run.shown(row["stage"])} for row in part]
        parts += [f"## Results: {one_line(name)}", metrics_table({"stage": "stage"}, shown)]
    parts += weak
    parts += [LEGEND if rows else "No stage of this experiment evaluates."]
    stages = dict.fromkeys(row["stage"] for row in rows if row["stage"] in run.names)
    parts += [f"Stages by name: {', '.join(f'{run.names[stage]} `{stage}`' for stage in stages)}."] if stages else []
    parts += [
        "All measures with intervals, results by group, metrics and settings of every stage, figures, episodes, trees, "
        "two arms side by side: [report.html](report.html)."
    ]
    if changes := changes_table(rows, artifacts, run.names):
        parts += ["## What each stage changed", changes]
        parts += ["Difference in points; brackets: 95 % bootstrap interval over paired questions, not over seeds."]
    if models := [f"- `{name}`: {line}" for name, stage in run.stages.items() for line in stage.chat_models]:
        parts += ["## Chat models", "\n".join(models)]
    if ranked:
        sentences = (sentence for ranking in ranked for sentence in answers(ranking["groups"], ranking["scorers"]))
        parts += ["## Reward model", *sentences, *ranking_parts(ranked)]
    return "\n\n".join(parts) + "\n"

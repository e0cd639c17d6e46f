"""The results of one run of an experiment: its rows, a page to read, and the rows of all its seeds together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from common.files import atomic_write, write_json
from common.plain_text import one_line, visible
from evaluation.evidence import stopping_by_hops
from evaluation.pages.figures import draw_all
from evaluation.report.details import details_page
from evaluation.report.stage_changes import changes_table
from evaluation.report.view_page import write_page
from evaluation.report.view_run import Run, read_run
from evaluation.results import (
    by_dataset,
    predictions,
    read_evaluation,
    read_results,
    result_row,
    seed_folders,
    shown_row,
)
from evaluation.steps.rankings import rankings
from evaluation.steps.step_auc import ALL, LOGP, POOLED, POSITION
from evaluation.steps.step_page import CALIBRATION_LEGEND, answers, auc_table, calibration_table
from evaluation.tables import LEGEND, figure, metrics_table

Row = dict[str, Any]

_FIGURES = {"answers": ["hops"], "steps": ["auc", "reliability"]}  # by the part of the report that they stand in
_MAX_CHARACTERS = 300  # of a step's text in an example


def write(runs: Path, experiment: str, seed: int, artifacts: Mapping[str, Path], *, question: str = "") -> str:
    """Write this seed's `results.json`, `report.md`, `details.md`, `report.html`, `figures/`, and all seeds' results.

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
    told = {"question": question, "rows": rows, "groups": groups, "notes": notes, "artifacts": places}
    write_json(folder / "results.json", told)
    title = f"{experiment}, seed {seed}"
    with atomic_write(folder / "details.md") as file:
        file.write(visible(details_page(title, measured, groups, notes, artifacts, folder)))
    ranked = rankings((experiment, seed, stage, path) for stage, path in artifacts.items())
    stopping = [
        {"experiment": experiment, "seed": seed, "stage": stage} | row
        for stage, results in evaluations.items()
        for row in stopping_by_hops(results["groups"])
    ]
    drawn = {"rows": measured, "stopping": stopping, "rankings": ranked}
    figures = {name: list(draw_all(names, drawn, folder / "figures")) for name, names in _FIGURES.items()}
    run = read_run(folder)
    with atomic_write(folder / "report.md") as file:
        file.write(visible(_page(title, question, _reused(run), shown, artifacts, ranked, figures)))
    write_page(folder / "report.html", [run], ranked=ranked)
    _gather(runs / experiment)
    tables = [f"{name}\n{metrics_table({'stage': 'stage'}, part)}" for name, part in by_dataset(shown).items()]
    return "\n\n".join([*tables, f"report: {folder / 'report.md'}"])


def _gather(experiment: Path) -> None:
    """Rows of all finished seeds in one file; the lock keeps two seeds that finish at once from losing rows."""
    with FileLock(experiment / ".results.lock"):
        finished = [folder for folder in seed_folders(experiment).values() if (folder / "results.json").exists()]
        rows = [row for folder in finished for row in read_results(folder)["rows"]]
        write_json(experiment / "results.json", {"rows": rows})


def _reused(run: Run) -> str:
    """Which results this run has not made as it would have, in a sentence; empty where there are none."""
    otherwise = [f"{name} was made {stage.otherwise}" for name, stage in run.stages.items() if stage.otherwise]
    told = f"Reused: {'; '.join(otherwise)}. `--force NAME` runs a stage again."
    return told if otherwise else ""


def _page(
    title: str,
    question: str,
    reused: str,
    rows: Sequence[Row],
    artifacts: Mapping[str, Path],
    ranked: Sequence[Row],
    figures: Mapping[str, Sequence[str]],
) -> str:
    parts = [f"# {title}", *filter(None, [question, reused])]
    for name, part in by_dataset(rows).items():
        parts += [f"## Results: {one_line(name)}", metrics_table({"stage": "stage"}, part)]
    parts += [LEGEND if rows else "No stage of this experiment evaluates."]
    parts += [
        "Results by group, metrics and settings of every stage, links to stages' own pages: [details](details.md). "
        "Episodes, trees and two arms side by side: [report.html](report.html)."
    ]
    if changes := changes_table(rows, artifacts):
        parts += [
            "## What each stage changed",
            changes,
            "Difference in points; brackets: 95 % bootstrap interval over paired questions, not over seeds.",
        ]
    parts += figures["answers"]
    if ranked:
        parts += ["## Reward model", *_ranking_parts(ranked), *figures["steps"]]
    if examples := list(_examples(rows, artifacts)):
        parts += ["## Episodes", *examples]
    return "\n\n".join(parts) + "\n"


def _ranking_parts(ranked: Sequence[Row]) -> Iterator[str]:
    """What each reward model is worth within kinds of step, beside what costs nothing; its stage's page has more."""
    for ranking in ranked:
        within = [group for group in ranking["groups"] if 0 < group["true"] < 1 and group["group"] != POOLED]
        yield from answers(ranking["groups"], ranking["scorers"])
        if within:
            yield auc_table(within, [*ranking["scorers"], LOGP, POSITION, ALL])
        if calibrated := {name: runs[0] for name, runs in ranking["calibration"].items() if runs[0]}:
            yield CALIBRATION_LEGEND
            yield calibration_table(calibrated)
    yield "AUC of true against untrue steps of unseen questions, with 95 % bootstrap intervals over questions."


def _examples(rows: Sequence[Row], artifacts: Mapping[str, Path]) -> Iterator[str]:
    """The first episode of each sort, of the last stage that has one."""
    wanted = {
        "Right": lambda row: row["em"] == 1 and not row.get("flawed"),
        "Right by a flawed process": lambda row: row["em"] == 1 and row.get("flawed"),
        "Wrong": lambda row: row["em"] == 0,
    }
    for title, fits in wanted.items():
        for result in reversed(rows):
            episodes = predictions(artifacts[result["stage"]], result["dataset"], result["split"])
            if (episode := next(filter(fits, episodes), None)) is not None:
                place = f"{result['stage']}, {result['dataset']}/{result['split']}"
                yield f"### {title} ({place})\n\n{_episode(episode)}"
                break


def _episode(row: Mapping[str, Any]) -> str:
    """An episode as an indented block, which no text inside it can close."""
    lines = [f"Question: {_clip(row['question'])}", f"Answers:  {_clip(' / '.join(row['answers']))}"]
    for number, step in enumerate(row["steps"], 1):
        verdict = "" if step["valid"] else " (not in format)"
        if (kept := step.get("kept")) is None:
            hits = f" (retrieved {', '.join(step['hits'])})" if step["hits"] else ""
        else:
            dropped = [hit for hit in step["hits"] if hit not in kept]
            hits = f" (kept {', '.join(kept) or 'none'}; dropped {', '.join(dropped) or 'none'})"
        lines.append(f"{number}. {step['kind']}{verdict}: {_clip(step['text'] or step.get('said', ''))}{hits}")
    scores = f"{row['status']}, EM {figure('em', row['em'])}, F1 {figure('f1', row['f1'])}"
    lines.append(f"Prediction: {_clip(row['prediction']) or '(none)'} ({scores})")
    return "\n".join(f"    {one_line(line)}".rstrip() for line in lines)


def _clip(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _MAX_CHARACTERS else line[:_MAX_CHARACTERS] + " …"

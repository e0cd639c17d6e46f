"""The page of one run or of several in one HTML file: their data as one JSON structure, a template, and a script.

`collect` gives the structure. Tables and figures stand in the file as they are; episodes, trees and curves are data in
it, which the script draws. The file needs no server and no network.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.errors import DataError
from common.files import atomic_write
from evaluation.report import arms
from evaluation.report.episodes import MISTAKES, Passages, printable, shown_episode, shown_question
from evaluation.report.figures import curves, curves_figure, result_figures
from evaluation.report.overview import arm_kinds, by_kind, drawn_name, numbers, pipeline
from evaluation.report.run import Run, named_rankings, read_answers
from evaluation.report.stage_changes import changes
from evaluation.report.training_episodes import iterations, minds
from evaluation.report.trees import search_trees
from evaluation.results import by_dataset, shown_row
from evaluation.retrieval_recall import stopping_by_hops
from evaluation.steps.rankings import rankings
from evaluation.tables import LEGEND, MISSING, figure, metrics_cells

_Read = TypeVar("_Read")
Row = dict[str, Any]

_REASON = 300  # characters of why a stage failed
_TENSORBOARD = "http://localhost:6006/"
_MORE = ("rewards/", "search/", "adv/", "stop/")  # families of curves that a page does not draw
_TEMPLATES = Path(__file__).parent / "templates"
# What the script draws; the rest of the structure is written into the file by the template.
_DRAWN = (
    "mistakes",
    "arms",
    "kinds",
    "mended",
    "counts",
    "pair",
    "questions",
    "passages",
    "figures",
    "curves",
    "trees",
    "iterations",
    "minds",
    "one",
)


def write_page(path: Path, runs: Sequence[Run], *, ranked: Sequence[Row] | None = None) -> None:
    """Write the page of some runs; the same runs give the same bytes.

    `ranked` are their step rankings (`evaluation.steps.rankings`), measured here where they are not given.

    Raises:
        DataError: there is no run.
    """
    if not runs:
        raise DataError("no run to show")
    _write(path, collect(runs, path.parent, ranked=ranked))


def write_episode(path: Path, title: str, row: Row, found: Mapping[str, Row]) -> None:
    """Write the page of one episode: `row` as in predictions, `found` the passages by id."""
    passages = Passages()
    one = {"question": shown_question(row), "name": title, "episode": shown_episode(row, found, passages)}
    _write(path, {"title": one["question"]["text"], "one": one, "passages": passages.rows})


def collect(runs: Sequence[Run], folder: Path, *, ranked: Sequence[Row] | None = None) -> Row:
    """Everything that the page of some runs shows; its links to other files start from `folder`."""
    runs = [by_kind(run) for run in runs]
    if len(runs) > 1:
        runs = [replace(run, prefix=f"{run.name}:") for run in runs]
    if ranked is None:
        ranked = _readable(runs[0], "a step ranking", lambda: _rankings(runs), [])
    ranked = named_rankings(runs, ranked)
    kinds = arm_kinds(runs)
    places = {name: place for place, name in enumerate(kinds)}
    answers = sorted((each for run in runs for each in read_answers(run)), key=lambda each: places[each.arm])
    changed = [_readable(run, "a manifest", lambda run=run: _stage_changes(run), ([], [])) for run in runs]
    pairs = arms.pairs_of_interest(runs, changed, [each.arm for each in answers])
    passages, asked = Passages(), arms.by_question(answers)
    questions = arms.on_page(asked)
    mended = arms.mended(runs, changed, questions, answers)
    if mended:
        questions.insert(0, questions.pop(mended[0]))  # is open at first
    drawn = [(run.name, found) for run in runs if (found := curves(run))]
    parts = {
        "title": ", seed ".join(runs[0].name.rsplit("/seed", 1)) if len(runs) == 1 else "Comparison",
        "runs": [_run(run, each, folder) for run, each in zip(runs, changed, strict=True)],
        "results": _results(runs, places),
        "figures": result_figures(_measured(runs, ranked, places)),
        "curves": [(name, curves_figure(found)) for name, found in drawn],
        "logdirs": list(dict.fromkeys(run.output for run in runs)),
        "tensorboard": list(tensorboard_links(runs, [tag for _, found in drawn for tag in found])),
        "episodes": sum(len(each.rows) for each in answers),
        "shown": sum(len(question.rows) for question in questions),
        "mistakes": MISTAKES,
        "arms": list(dict.fromkeys(each.arm for each in answers)),
        "kinds": kinds,
        "mended": mended and mended[1:],
        "counts": arms.counts(answers),
        "pair": arms.compared(pairs, questions, answers),
        "questions": arms.shown(questions, answers, passages),
        "trees": [
            part
            for run in runs
            for part in _readable(run, "a search or its pairs", lambda run=run: list(search_trees(run)), [])
        ],
        "iterations": [part for run in runs for part in iterations(run, passages)],
        "minds": [part for run in runs for part in minds(run, passages)],
        "passages": passages.rows,
    }
    return parts | {"problems": list(dict.fromkeys(problem for run in runs for problem in run.problems))}


def render(data: Row) -> str:
    """The file: text of others is never markup, and no script runs but the page's own."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    style, script = ((_TEMPLATES / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    drawn = {key: value for key, value in data.items() if key in _DRAWN}
    text = json.dumps(drawn, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    assets = {"style": style, "script": script, "script_hash": f"sha256-{digest}", "legend": LEGEND}
    return environment.get_template("page.html").render(data | assets | {"data": text.replace("<", "\\u003c")})


def tensorboard_links(runs: Sequence[Run], drawn: Iterable[str]) -> Iterator[tuple[str, str]]:
    """A link for each family of tags, what is before their first slash: those that are drawn come first."""
    chosen = quote("|".join(re.escape("/".join(run.folder.parts[-2:])) for run in runs))
    families = ("".join(tag.partition("/")[:2]) for tag in drawn)
    for family in dict.fromkeys((*families, *_MORE)):
        yield family, f"{_TENSORBOARD}?runFilter={chosen}&tagFilter={quote('^' + re.escape(family))}#timeseries"


def _write(path: Path, data: Row) -> None:
    with atomic_write(path) as file:
        file.write(render(data))


def _run(run: Run, changed: arms.Changes, folder: Path) -> Row:
    """Data of a run on its page: its question, unfinished stages, all stages, notes on evaluations."""
    states = {stage.name: printable(stage.status, _REASON) for stage in run.stages.values()}
    failed = [f"{stage.name} ({states[stage.name]})" for stage in run.stages.values() if stage.state == "failed"]
    stages = [
        {
            "cells": [stage.name, states[stage.name], stage.folder.name, stage.manifest.get("kind", MISSING)],
            "page": _link(stage.folder / "report.md", folder),
            "made": [
                figure("seconds", stage.manifest.get("seconds")),
                ", ".join([*_metrics(stage.manifest), *stage.chat_models]) or MISSING,
            ],
        }
        for stage in run.stages.values()
    ]
    return {
        "name": run.name,
        "question": run.question,
        "changes": run.changes,
        "unfinished": [
            f"{stage.name} ({states[stage.name]})" if stage.state == "failed" else stage.name
            for stage in run.stages.values()
            if stage.state != "finished"
        ],
        "failed": failed,
        "changed": changed,
        "numbers": numbers(run, changed[1]),
        "pipeline": list(pipeline(run)),
        "stages": stages,
        "guesses": list(_guesses(run)),
        "names": {stage: run.names[stage] for stage in run.results if stage in run.names},
        "notes": {stage: results["notes"] for stage, results in run.results.items() if results["notes"]},
    }


def _link(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder.resolve())).as_posix() if path.exists() else ""


def _metrics(manifest: Mapping[str, Any]) -> Iterator[str]:
    metrics = manifest.get("metrics", {})
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        shown = f"{value:.4g}" if isinstance(value, int | float) else MISSING if value is None else printable(value, 40)
        yield f"{name} {shown}"


def _guesses(run: Run) -> Iterator[str]:
    """Scores of all baselines that answer by guessing."""
    for stage in run.stages.values():
        for name, score in stage.manifest.get("metrics", {}).items():
            if name.startswith("guess"):
                yield f"{stage.name} {name} {figure('em', score)}"


def _stage_changes(run: Run) -> arms.Changes:
    """Change by each stage, for the evaluations whose predictions could be read."""
    rows = [row for row in run.rows() if (row["stage"], row["dataset"], row["split"]) not in run.unreadable]
    return changes([shown_row(row) for row in rows], run.artifacts, run.names)


def _readable(run: Run, what: str, read: Callable[[], _Read], otherwise: _Read) -> _Read:
    """Make a part of a page; where a file cannot be read, note a problem of the run and return `otherwise`."""
    try:
        return read()
    except KeyError as error:
        run.problems.append(f"{what} lacks {error}: an earlier version made it")
    except DataError as error:
        run.problems.append(str(error))
    return otherwise


def _results(runs: Sequence[Run], places: Mapping[str, int]) -> list[Row]:
    """For each dataset: cells of its table, and of those that have all measures, of all questions and by group."""

    def named(part: str) -> dict[str, list[Row]]:
        rows = [{**row, "stage": run.shown(row["stage"])} for run in runs for row in run.rows(part)]
        return by_dataset(sorted(rows, key=lambda row: places[row["stage"]]))

    groups = named("groups")
    return [
        {
            "name": name,
            "table": _metrics_first({"stage": "stage"}, [shown_row(row) for row in rows]),
            "more": [("all questions", _metrics_first({"stage": "stage"}, rows)), *_by_group(groups.get(name, []))],
        }
        for name, rows in named("rows").items()
    ]


def _by_group(groups: Sequence[Row]) -> Iterator[tuple[str, tuple[list[str], list[list[str]]]]]:
    """A table for each kind of group (`hops=2` is of the kind hops), its values in order."""
    kinds: dict[str, list[Row]] = {}
    for row in groups:
        kind, _, value = row["group"].partition("=")
        kinds.setdefault(kind, []).append({**row, "group": value})
    for kind, members in kinds.items():
        members.sort(key=lambda row: row["group"].zfill(9) if row["group"].isdigit() else row["group"])
        yield f"by {kind}", _metrics_first({"group": kind, "stage": "stage"}, members)


def _metrics_first(labels: Mapping[str, str], rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """`metrics_cells` with the number of questions last: a phone shows the first columns."""
    header, lines = metrics_cells(labels, rows)
    place = len(labels)
    return [*header[:place], *header[place + 1 :], header[place]], [
        [*line[:place], *line[place + 1 :], line[place]] for line in lines
    ]


def _rankings(runs: Sequence[Run]) -> list[Row]:
    """The step rankings of all runs, measured over the seeds of an experiment together."""
    return rankings(
        (run.experiment, run.seed, stage, folder) for run in runs for stage, folder in run.artifacts.items()
    )


def _measured(runs: Sequence[Run], ranked: Sequence[Row], places: Mapping[str, int]) -> Row:
    """Rows that the figures of results are drawn from, the arms in order."""
    rows, stopping = list[Row](), list[Row]()
    for run in runs:
        for stage, results in run.results.items():
            where = {"experiment": run.experiment, "seed": run.seed, "stage": stage}
            where["arm"] = drawn_name(runs, run, stage)
            rows += [where | row for row in results["rows"]]
            stopping += [where | row for row in stopping_by_hops(results["groups"])]
    for part in (rows, stopping):
        part.sort(key=lambda row: places[row["arm"]])
    return {"rows": rows, "stopping": stopping, "rankings": ranked}

"""The parts of a page around its episodes: results, stages, curves, reward model, trees, training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from common.errors import DataError
from evaluation.evidence import stopping_by_hops
from evaluation.report.stage_changes import changes
from evaluation.report.view_curves import curves
from evaluation.report.view_figures import curves_figure, result_figures
from evaluation.report.view_mistakes import MISTAKES
from evaluation.report.view_run import Run, evaluation_of
from evaluation.report.view_share import Listing
from evaluation.report.view_text import Row, printable
from evaluation.report.view_training import iterations, minds
from evaluation.report.view_trees import search_trees
from evaluation.report.view_values import curve_values
from evaluation.results import by_dataset, shown_row
from evaluation.steps.rankings import rankings
from evaluation.tables import LEGEND, MISSING, figure, metrics_cells

_REASON = 300  # characters of why a stage failed
_TENSORBOARD = "http://localhost:6006/"
_MORE = ("rewards/", "search/", "adv/", "stop/")  # families of curves that a page does not draw

SECTIONS = {
    "results": "Results",
    "stages": "Stages",
    "curves": "Learning curves",
    "reward-model": "Reward model",
    "mistakes": "What went wrong",
    "arms": "Two arms",
    "episodes": "Episodes",
    "trees": "Search trees",
    "training": "Training episodes",
    "passages": "Passages",
}


def page_parts(runs: Sequence[Run], ranked: Sequence[Row] | None) -> Row:
    """All of a page but its episodes, its lists without markup; step rankings that are not given are measured."""
    ranked = _rankings(runs) if ranked is None else ranked
    shown, measured = [_run(run) for run in runs], _drawn(runs, ranked)
    drawn = [(run.name, panels) for run in runs if (panels := curves(run))]
    named = [(run, f"{run.name}:" if len(runs) > 1 else "") for run in runs]
    title = ", seed ".join(runs[0].name.rsplit("/seed", 1)) if len(runs) == 1 else "Comparison"
    return {
        "title": title,
        "runs": shown,
        "sections": list(SECTIONS.items()),
        "results": _results(runs),
        "figures": result_figures(measured),
        "legend": LEGEND,
        "curves": [
            (name, {"drawn": curves_figure(panels, f"curves{number}"), "values": curve_values(panels)})
            for number, (name, panels) in enumerate(drawn)
        ],
        "logdirs": list(dict.fromkeys(run.output for run in runs)),
        "tensorboard": list(tensorboard_links(runs, [tag for _, panels in drawn for tag in panels])),
        "trees": [part for run, prefix in named for part in _trees(run, prefix)],
        "iterations": [part for run, prefix in named for part in iterations(run, prefix=prefix)],
        "minds": [part for run, prefix in named for part in minds(run, prefix=prefix)],
        "mistakes": MISTAKES,
        "problems": list(dict.fromkeys(problem for run in runs for problem in run.problems)),
    }


def _run(run: Run) -> Row:
    header, rows = stage_changes(run)
    stages = [
        [
            stage.name,
            printable(stage.told, _REASON),
            stage.manifest.get("kind", MISSING),
            figure("seconds", stage.manifest.get("seconds")),
            ", ".join(_metrics(stage.manifest)) or MISSING,
        ]
        for stage in run.stages.values()
    ]
    missing = [stage for stage in run.stages.values() if stage.state != "finished"]
    why = {stage.name: printable(stage.told, _REASON) for stage in missing if stage.state == "failed"}
    failed = {name: f"{name} ({told})" for name, told in why.items()}
    unfinished = [failed.get(stage.name, stage.name) for stage in missing]
    told = {"name": run.name, "question": run.question, "changes": run.changes}
    told |= {"unfinished": unfinished, "failed": list(failed.values())}
    return told | {"change_header": header, "change_rows": rows, "stage_rows": stages}


def stage_changes(run: Run) -> tuple[list[str], list[list[str]]]:
    """Header and cells of what each stage changed; no cells where a file cannot be read."""
    rows = [row for row in run.rows() if evaluation_of(row) not in run.unreadable]
    try:
        return changes([shown_row(row) for row in rows], run.artifacts)
    except (DataError, KeyError) as error:
        run.problems.append(_unreadable("a manifest", error))
        return [], []


def _metrics(manifest: Mapping[str, Any]) -> Iterator[str]:
    metrics = manifest.get("metrics", {})
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        shown = f"{value:.4g}" if isinstance(value, int | float) else MISSING if value is None else printable(value, 40)
        yield f"{name} {shown}"


def _results(runs: Sequence[Run]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Header and cells of a table for each dataset."""
    several = len(runs) > 1
    rows = [
        {**shown_row(row), "stage": f"{run.name}:{row['stage']}" if several else row["stage"]}
        for run in runs
        for row in run.rows()
    ]
    return {name: metrics_cells({"stage": "stage"}, part) for name, part in by_dataset(rows).items()}


def _rankings(runs: Sequence[Run]) -> list[Row]:
    """The step rankings of all runs, measured over the seeds of an experiment together."""
    stages = [(run.experiment, run.seed, stage, folder) for run in runs for stage, folder in run.artifacts.items()]
    try:
        return rankings(stages)
    except (DataError, KeyError) as error:
        runs[0].problems.append(_unreadable("a step ranking", error))
        return []


def _drawn(runs: Sequence[Run], ranked: Sequence[Row]) -> Row:
    """What the figures of results are drawn from."""
    rows, stopping = list[Row](), list[Row]()
    for run in runs:
        where = {"experiment": run.experiment, "seed": run.seed}
        rows += [{**row, **where} for row in run.rows()]
        for stage, results in run.results.items():
            stopping += [where | {"stage": stage} | row for row in stopping_by_hops(results["groups"])]
    return {"rows": rows, "stopping": stopping, "rankings": ranked}


def _trees(run: Run, prefix: str) -> list[Listing]:
    try:
        return list(search_trees(run, prefix=prefix))
    except (DataError, KeyError) as error:
        run.problems.append(_unreadable("a search or its pairs", error))
        return []


def _unreadable(what: str, error: Exception) -> str:
    """Why a part is left out; a key is missing where an earlier version wrote the file."""
    return f"{what} lacks {error}: an earlier version made it" if isinstance(error, KeyError) else str(error)


def tensorboard_links(runs: Sequence[Run], drawn: Iterable[str]) -> Iterator[tuple[str, str]]:
    """A link for each family of tags, what is before their first slash: those that are drawn come first."""
    chosen = quote("|".join(re.escape("/".join(run.folder.parts[-2:])) for run in runs))
    families = ("".join(tag.partition("/")[:2]) for tag in drawn)
    for family in dict.fromkeys((*families, *_MORE)):
        yield family, f"{_TENSORBOARD}?runFilter={chosen}&tagFilter={quote('^' + re.escape(family))}#timeseries"

"""The page of one run or of several: everything that a reader needs in one HTML file under 5 MB, without a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.errors import DataError
from common.files import atomic_write
from evaluation.evidence import stopping_by_hops
from evaluation.figures import FIGURES
from evaluation.rankings import rankings
from evaluation.results import by_dataset, shown_row
from evaluation.stage_changes import changes
from evaluation.tables import LEGEND, MISSING, figure, metrics_cells
from evaluation.view_curves import curves
from evaluation.view_figures import curves_figure, inline
from evaluation.view_list import EpisodeList, Listed, attributes, differences, fill, listed
from evaluation.view_mistakes import MISTAKES, outcome
from evaluation.view_run import Run, read_answers
from evaluation.view_steps import Shelf, shown_episode, shown_question
from evaluation.view_text import Row, printable
from evaluation.view_training import iterations, minds
from evaluation.view_trees import search_trees

LIMIT = 5_000_000  # bytes of a page
_PASSAGES = 800_000  # of them, for passages
_RESERVE = 100_000  # of them, for what grows with the episodes and is small
_FILLINGS = 2
_FIGURES = ("arms", "hops", "auc", "reliability")  # of those of the results pages
_DIFFERENCES = 40  # questions in the table of two arms
_TEMPLATES = Path(__file__).parent / "templates"
_TENSORBOARD = "http://localhost:6006/"
_TAGS = ("eval/", "rewards/", "search/", "adv/", "stop/", "loss", "kl", "entropy")

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


def write_page(path: Path, runs: Sequence[Run], *, ranked: Sequence[Row] | None = None) -> None:
    """Write the page of some runs; the same runs give the same bytes.

    `ranked` are their step rankings (`evaluation.rankings`), measured here where they are not given.

    Raises:
        DataError: there is no run.
    """
    if not runs:
        raise DataError("no run to show")
    with atomic_write(path) as file:
        file.write(render_page(runs, ranked=ranked))


def render_page(runs: Sequence[Run], *, limit: int = LIMIT, ranked: Sequence[Row] | None = None) -> str:
    """The page as HTML, of at most `limit` bytes as long as that is enough for everything but episodes."""
    environment = template_environment()
    template = environment.get_template("report.html")
    several = len(runs) > 1
    answers = [each for run in runs for each in read_answers(run, prefix=f"{run.name}:" if several else "")]
    page, shelf = listed(answers), Shelf(_PASSAGES)
    fixed = _fixed(runs, shelf, _rankings(runs) if ranked is None else ranked) | {"pair": None}
    macro: Any = environment.get_template("macros.html").module
    text = template.render(fixed | _episodes(page, shelf))
    for _ in range(_FILLINGS):  # what an episode adds to the page is estimated at first
        room = limit - len(text.encode()) - _RESERVE - shelf.budget
        fill(page, shelf, room, lambda one, shown: str(_article(macro, page, one, shown)))
        text = template.render(fixed | _episodes(page, shelf) | {"pair": _pair(runs, page)})
    return text


def write_episode(path: Path, title: str, row: Row, found: Mapping[str, Row]) -> None:
    """Write the page of one episode: `row` as in predictions, `found` the passages by id."""
    shelf = Shelf(_PASSAGES)
    shown = {"question": shown_question(row), "episode": shown_episode(row, found, shelf), "shelf": shelf}
    template = template_environment().get_template("episode.html")
    with atomic_write(path) as file:
        file.write(template.render(page_assets() | shown | {"title": title}))


def template_environment() -> Environment:
    """The templates, with autoescape on: text of others is never markup."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"printable": printable, "outcome": outcome}
    return environment


def page_assets() -> Row:
    """Style and script of a page, and the hash that alone lets the script run."""
    style, script = ((_TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": style, "script": script, "script_hash": f"sha256-{digest}"}


def _fixed(runs: Sequence[Run], shelf: Shelf, ranked: Sequence[Row]) -> Row:
    """All of a page but its list of episodes."""
    shown, measured = [_run(run) for run in runs], _drawn(runs, ranked)
    training = [list(part(run, shelf)) for part in (iterations, minds) for run in runs]
    half = len(runs)
    drawn = [(run.name, panels) for run in runs if (panels := curves(run))]
    trees = [pair for run in runs for pair in _trees(run)]
    title = ", seed ".join(runs[0].name.rsplit("/seed", 1)) if len(runs) == 1 else "Comparison"
    return page_assets() | {
        "title": title,
        "runs": shown,
        "sections": list(SECTIONS.items()),
        "results": _results(runs),
        "figures": {name: inline(text) for name in _FIGURES if (text := FIGURES[name](measured))},
        "legend": LEGEND,
        "curves": [(name, curves_figure(panels)) for name, panels in drawn],
        "logdir": runs[0].folder.parents[1].name,
        "tensorboard": list(_tensorboard_links(runs)),
        "trees": trees,
        "iterations": [part for parts in training[:half] for part in parts],
        "minds": [part for parts in training[half:] for part in parts],
        "mistakes": MISTAKES,
        "problems": [problem for run in runs for problem in run.problems],
    }


def _run(run: Run) -> Row:
    header, rows = changes([shown_row(row) for row in run.rows()], run.artifacts)
    stages = [
        [
            stage.name,
            stage.state,
            stage.manifest.get("kind", MISSING),
            figure("seconds", stage.manifest.get("seconds")),
            ", ".join(_metrics(stage.manifest)) or MISSING,
        ]
        for stage in run.stages.values()
    ]
    unfinished = [stage.name for stage in run.stages.values() if stage.state != "finished"]
    told = {"name": run.name, "question": run.question, "changes": run.changes, "unfinished": unfinished}
    return told | {"change_header": header, "change_rows": rows, "stage_rows": stages}


def _metrics(manifest: Mapping[str, Any]) -> Iterator[str]:
    for name, value in manifest.get("metrics", {}).items():
        yield f"{name} {MISSING if value is None else f'{value:.4g}'}"


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
    stages = [(*_experiment(run), stage, folder) for run in runs for stage, folder in run.artifacts.items()]
    try:
        return rankings(stages)
    except DataError as error:
        runs[0].problems.append(str(error))
        return []


def _drawn(runs: Sequence[Run], ranked: Sequence[Row]) -> Row:
    """What the figures of results are drawn from."""
    rows, stopping = list[Row](), list[Row]()
    for run in runs:
        experiment, seed = _experiment(run)
        where = {"experiment": experiment, "seed": seed}
        rows += [{**row, **where} for row in run.rows()]
        for stage, results in run.results.items():
            stopping += [where | {"stage": stage} | row for row in stopping_by_hops(results["groups"])]
    return {"rows": rows, "stopping": stopping, "rankings": ranked}


def _experiment(run: Run) -> tuple[str, int]:
    return run.folder.parent.name, int(run.folder.name.removeprefix("seed"))


def _trees(run: Run) -> list[tuple[str, list[Row]]]:
    try:
        return list(search_trees(run))
    except DataError as error:
        run.problems.append(str(error))
        return []


def _tensorboard_links(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    chosen = quote("|".join(run.name for run in runs))
    for tag in _TAGS:
        yield tag, f"{_TENSORBOARD}?runFilter={chosen}&tagFilter={quote('^' + tag)}#timeseries"


def _episodes(page: EpisodeList, shelf: Shelf) -> Row:
    kinds, untrue = page.untrue()
    gone = [episode for episode in page.episodes if not episode.markup]
    arms = page.arms
    return {
        "counts": page.counts(),
        "untrue_kinds": kinds,
        "untrue_rows": untrue,
        "arms": arms,
        "arm_of": lambda episode: page.answers[episode.of].arm,
        "shelf": shelf,
        "list": {
            "all": len(page.episodes),
            "shown": len(page.episodes) - len(gone),
            "flawless": sum(not episode.mistakes for episode in gone),
            "mistaken": sum(bool(episode.mistakes) for episode in gone),
            "questions": page.on_page(),
            "hops": sorted({q.shown["hops"] for q in page.questions if q.shown["hops"]}),
            "statuses": sorted({printable(episode.row["status"], 40) for episode in page.episodes}),
            "passages_left_out": shelf.left_out,
        },
    }


def _article(macro: Any, page: EpisodeList, episode: Listed, shown: Row) -> Any:
    of = page.answers[episode.of]
    data = attributes(episode) | {"arm": page.arms.index(of.arm), "f1": round(episode.row.get("f1") or 0, 3)}
    return macro.episode(shown, of.arm, f"e{episode.number}", data)


def _pair(runs: Sequence[Run], page: EpisodeList) -> Row | None:
    """Where two arms differ: the last evaluation and the one it is compared with, or the last of the first two runs."""
    for first, second in _pairs(runs, page):
        differing = differences(page, first, second)
        if differing:
            better = sum((two.row["em"] or 0) > (one.row["em"] or 0) for _, one, two in differing)
            worse = sum((two.row["em"] or 0) < (one.row["em"] or 0) for _, one, two in differing)
            told = {"first": first, "second": second, "better": better, "worse": worse}
            return told | {"shown": differing[:_DIFFERENCES], "left_out": max(0, len(differing) - _DIFFERENCES)}
    return None


def _pairs(runs: Sequence[Run], page: EpisodeList) -> Iterator[tuple[str, str]]:
    if len(runs) > 1:
        last = [[arm for arm in page.arms if arm.startswith(f"{run.name}:")][-1:] for run in runs]
        arms = [arm for found in last for arm in found]
        yield from pairwise(arms)
        return
    _, rows = changes([shown_row(row) for row in runs[0].rows()], runs[0].artifacts)
    yield from ((row[1], row[0]) for row in reversed(rows) if row[1] != MISSING)
    yield from reversed(list(pairwise(page.arms)))

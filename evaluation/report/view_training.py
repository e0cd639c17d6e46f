"""Training episodes on a page: those of chosen iterations, and the same dev questions at each point of a curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from common.errors import DataError
from evaluation.report.view_checks import CURVE, ITERATION, REWARDED, Needs, check, check_episode, check_passage
from evaluation.report.view_mistakes import outcome
from evaluation.report.view_run import Run
from evaluation.report.view_share import Listing, spread
from evaluation.report.view_steps import Shelf, shown_episode, shown_question
from evaluation.report.view_text import Row
from evaluation.report.view_trees import rollout_trees
from evaluation.results import read_json


def iterations(run: Run, *, prefix: str = "") -> Iterator[Listing]:
    """For each stage that kept some: its iterations with their episodes and rewards, those spread over all first.

    `prefix` comes before the names of stages.
    """
    for stage, points in _kept(run, "iterations", ITERATION, REWARDED):
        yield Listing("iteration", {"stage": prefix + stage}, points, _iteration, spread(len(points)))


def minds(run: Run, *, prefix: str = "") -> Iterator[tuple[Listing, Listing]]:
    """For each curve that kept its episodes: whether each question was answered rightly at each point.

    The second list has the episodes of the questions whose verdict changed. Those that changed most often come first.
    `prefix` comes before the names of stages.
    """
    for stage, points in _kept(run, "validation", CURVE, {}):
        for where in dict.fromkeys((point["dataset"], point["split"]) for point in points):
            curve = [point for point in points if (point["dataset"], point["split"]) == where]
            by_question = {row["id"]: [row] for row in curve[0]["episodes"]}
            for point in curve[1:]:
                for row in point["episodes"]:
                    by_question.setdefault(row["id"], []).append(row)
            whole = [rows for rows in by_question.values() if len(rows) == len(curve)]
            whole.sort(key=lambda rows: -_changes(rows))
            updates = [point["update"] for point in curve]
            told = {"stage": prefix + stage, "dataset": "/".join(where), "updates": updates}
            changed = [list(zip(curve, rows, strict=True)) for rows in whole if _changes(rows)]
            yield Listing("verdicts", told, whole, _verdicts), Listing("changes", told, changed, _points)


def _kept(run: Run, what: str, needs: Needs, of_episodes: Needs) -> Iterator[tuple[str, list[Row]]]:
    """The points that each stage kept so far, in order of their updates, also of a stage that is not finished."""
    for stage in run.stages.values():
        try:
            paths = sorted((stage.folder / "data" / what).glob("*.json"))
            points = [_point(path, needs, of_episodes) for path in paths]
        except DataError as error:
            run.problems.append(str(error))
            continue
        if points:
            yield stage.name, sorted(points, key=lambda point: point["update"])


def _point(path: Path, needs: Needs, of_episodes: Needs) -> Row:
    point = read_json(path)
    check(point, needs, str(path))
    for row in point["episodes"]:
        check_episode(row, path, more=of_episodes)
    for passage in point["passages"].values():
        check_passage(passage, path, named=False)
    return point


def _iteration(point: Row, shelf: Shelf) -> Row:
    """The episodes of an iteration; those that share turns come as a tree too."""
    return {
        "iteration": point["iteration"],
        "update": point["update"],
        "trees": rollout_trees(point["episodes"]),
        "episodes": [
            (row["shown_as"], shown_question(row), shown_episode(row, point["passages"], shelf))
            for row in point["episodes"]
        ],
    }


def _verdicts(rows: Sequence[Row], _: Shelf) -> Row:
    return {"question": shown_question(rows[0]), "outcomes": [outcome(row) for row in rows]}


def _points(points: Sequence[tuple[Row, Row]], shelf: Shelf) -> Row:
    """A question's episode at each point; one whose steps are those of the point before is not repeated."""
    shown: list[Row] = []
    before: Row | None = None
    for point, row in points:
        same = before is not None and _written(before) == _written(row)
        episode = None if same else shown_episode(row, point["passages"], shelf)
        shown.append({"update": point["update"], "episode": episode})
        before = row
    return {"question": shown_question(points[0][1]), "points": shown}


def _written(row: Row) -> list[tuple[str, str]]:
    return [(step["kind"], step.get("said") or step["text"]) for step in row["steps"]]


def _changes(rows: Sequence[Row]) -> int:
    ended = [outcome(row) for row in rows]
    return sum(a != b for a, b in pairwise(ended))

"""Training episodes on a page: those of chosen iterations, and the same dev questions at each point of a curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.errors import DataError
from evaluation.report.episodes import Passages, outcome, shown_episode, shown_question
from evaluation.report.figures import thinned
from evaluation.report.run import Needs, Run, check, check_episode, check_passage
from evaluation.report.trees import rollout_trees
from evaluation.results import read_json

Row = dict[str, Any]
_POINT: Needs = {"update": int, "episodes": list, "passages": dict}
_CURVE: Needs = {**_POINT, "dataset": str, "split": str}
_ITERATION: Needs = {**_POINT, "iteration": int}
_REWARDED: Needs = {"shown_as": str, "outcome": dict}
ITERATIONS, QUESTIONS, CHANGED = 12, 100, 20  # of a stage; of a curve, and those of them with their episodes


def iterations(run: Run, passages: Passages) -> Iterator[Row]:
    """For each stage that kept some: its iterations with their episodes and rewards, evenly spread over all."""
    for stage, points in _kept(run, "iterations", _ITERATION, _REWARDED):
        chosen = thinned(points, ITERATIONS)
        shown = [_iteration(point, passages) for point in chosen]
        yield {"stage": run.prefix + stage, "points": shown, "more": len(points) - len(chosen)}


def minds(run: Run, passages: Passages) -> Iterator[Row]:
    """For each curve that kept its episodes: whether the answer to each question was right at each point.

    Those that changed most often come first; the first of these have their episodes too.
    """
    for stage, points in _kept(run, "validation", _CURVE, {}):
        for where in dict.fromkeys((point["dataset"], point["split"]) for point in points):
            curve = [point for point in points if (point["dataset"], point["split"]) == where]
            by_question: dict[str, list[Row]] = {row["id"]: [] for row in curve[0]["episodes"]}
            for point in curve:
                for row in point["episodes"]:
                    by_question.setdefault(row["id"], []).append(row)
            whole = [rows for rows in by_question.values() if len(rows) == len(curve)]
            whole.sort(key=lambda rows: -_changes(rows))
            changed = [rows for rows in whole if _changes(rows)]
            yield {
                "stage": run.prefix + stage,
                "dataset": "/".join(where),
                "updates": [point["update"] for point in curve],
                "rows": [(shown_question(rows[0])["text"], list(map(outcome, rows))) for rows in whole[:QUESTIONS]],
                "changed": [_along(curve, rows, passages) for rows in changed[:CHANGED]],
                "more": len(whole[QUESTIONS:]),
                "more_changed": len(changed[CHANGED:]),
            }


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
        check_episode(row, path, of_episodes)
    for passage in point["passages"].values():
        check_passage(passage, path, {})
    return point


def _iteration(point: Row, passages: Passages) -> Row:
    """The episodes of an iteration; those that share turns come as a tree too."""
    return {
        "iteration": point["iteration"],
        "update": point["update"],
        "trees": rollout_trees(point["episodes"]),
        "episodes": [
            {"name": row["shown_as"], "question": shown_question(row)}
            | {"episode": shown_episode(row, point["passages"], passages)}
            for row in point["episodes"]
        ],
    }


def _along(curve: Sequence[Row], rows: Sequence[Row], passages: Passages) -> Row:
    """A question's episode at each point; one whose steps are those of the point before is not repeated."""
    points: list[Row] = []
    before = None
    for point, row in zip(curve, rows, strict=True):
        written = [(step["kind"], step.get("said") or step["text"]) for step in row["steps"]]
        episode = None if written == before else shown_episode(row, point["passages"], passages)
        points.append({"update": point["update"], "episode": episode})
        before = written
    return {"question": shown_question(rows[0]), "points": points}


def _changes(rows: Sequence[Row]) -> int:
    ended = [outcome(row) for row in rows]
    return sum(a != b for a, b in pairwise(ended))

"""Training episodes on a page: those of chosen iterations, and the same dev questions at each point of a curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from common.errors import DataError
from evaluation.kept_episodes import kept
from evaluation.view_mistakes import outcome
from evaluation.view_run import Run
from evaluation.view_steps import Shelf, shown_episode, shown_question
from evaluation.view_text import Row
from evaluation.view_trees import rollout_trees

_ITERATIONS, _QUESTIONS = 12, 8  # of a stage that a page shows


def iterations(run: Run, shelf: Shelf) -> Iterator[Row]:
    """For each stage that kept some: the episodes of its iterations, spread evenly over them, with rewards.

    Episodes that share turns come as trees too.
    """
    for stage, points in _kept(run, "iterations"):
        chosen = _spread(points, _ITERATIONS)
        shown = [
            {
                "iteration": point["iteration"],
                "update": point["update"],
                "trees": rollout_trees(point["episodes"]),
                "episodes": [
                    (row["shown_as"], shown_question(row), shown_episode(row, point["passages"], shelf))
                    for row in point["episodes"]
                ],
            }
            for point in chosen
        ]
        yield {"stage": stage, "iterations": shown, "left_out": len(points) - len(chosen)}


def minds(run: Run, shelf: Shelf) -> Iterator[Row]:
    """For each curve that kept its episodes: whether each question was answered rightly at each point.

    `questions` have their episodes too: those whose verdict changed most often. An episode whose steps are those
    of the point before is not repeated.
    """
    for stage, points in _kept(run, "validation"):
        for where in dict.fromkeys((point["dataset"], point["split"]) for point in points):
            curve = [point for point in points if (point["dataset"], point["split"]) == where]
            by_question = {row["id"]: [row] for row in curve[0]["episodes"]}
            for point in curve[1:]:
                for row in point["episodes"]:
                    by_question.setdefault(row["id"], []).append(row)
            whole = {id_: rows for id_, rows in by_question.items() if len(rows) == len(curve)}
            order = sorted(whole, key=lambda id_: -_changes(whole[id_]))
            yield {
                "stage": stage,
                "dataset": "/".join(where),
                "updates": [point["update"] for point in curve],
                "grid": [(shown_question(whole[id_][0]), [outcome(row) for row in whole[id_]]) for id_ in order],
                "questions": [
                    {"shown": shown_question(whole[id_][0]), "points": list(_points(whole[id_], curve, shelf))}
                    for id_ in order[:_QUESTIONS]
                    if _changes(whole[id_])
                ],
            }


def _kept(run: Run, what: str) -> Iterator[tuple[str, list[Row]]]:
    """The points that each stage kept so far, in order of their updates, also of a stage that is not finished."""
    for stage in run.stages.values():
        try:
            points = kept(stage.folder / "data" / what)
        except DataError as error:
            run.problems.append(str(error))
            continue
        if points:
            yield stage.name, sorted(points, key=lambda point: point["update"])


def _points(rows: Sequence[Row], curve: Sequence[Row], shelf: Shelf) -> Iterator[Row]:
    before: Row | None = None
    for row, point in zip(rows, curve, strict=True):
        same = before is not None and _written(before) == _written(row)
        shown = None if same else shown_episode(row, point["passages"], shelf)
        yield {"update": point["update"], "outcome": outcome(row), "shown": shown}
        before = row


def _written(row: Row) -> list[tuple[str, str]]:
    return [(step["kind"], step.get("said") or step["text"]) for step in row["steps"]]


def _changes(rows: Sequence[Row]) -> int:
    ended = [outcome(row) for row in rows]
    return sum(a != b for a, b in pairwise(ended))


def _spread(points: Sequence[Row], count: int) -> list[Row]:
    """At most `count` of some points, evenly spread, the first and the last among them."""
    if len(points) <= count:
        return list(points)
    return [points[round(place * (len(points) - 1) / (count - 1))] for place in range(count)]

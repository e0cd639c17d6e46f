"""What a page needs of the rows that it reads, checked once: one of another version is a line on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.errors import DataError
from evaluation.tables import METRICS

Needs = Mapping[str, type | tuple[type, ...]]

_SCORE = (int, float, type(None))
_EPISODE: Needs = {
    **dict.fromkeys(("id", "question", "prediction", "status"), str),
    **{"answers": list, "steps": list, "em": _SCORE, "f1": _SCORE},
}
_STEP: Needs = {"kind": str, "text": str, "valid": bool, "hits": list}
_PASSAGE: Needs = {"title": str, "text": str}
POINT: Needs = {"update": int, "episodes": list, "passages": dict}
CURVE: Needs = {**POINT, "dataset": str, "split": str}
ITERATION: Needs = {**POINT, "iteration": int}
_MEASURES: Needs = {f"{metric}{end}": _SCORE for metric in METRICS for end in ("", "_low", "_high")}
REWARDED: Needs = {"shown_as": str, "outcome": dict}


def check(value: object, needs: Needs, what: str) -> None:
    """Check that a value has what is needed of it; `what` names it and its file.

    Raises:
        DataError: something is missing, or is of another type.
    """
    if not isinstance(value, dict):
        raise DataError(f"{what} is a {type(value).__name__}, not an object")
    for key, kind in needs.items():
        if key not in value:
            raise DataError(f"{what} lacks {key!r}: another version made it")
        if not isinstance(value[key], kind):
            raise DataError(f"{what} has a {type(value[key]).__name__} as {key!r}")


def check_episode(row: Any, where: object, *, more: Needs | None = None) -> None:
    """Check an episode and its steps; `more` is what is needed of it besides.

    Raises:
        DataError: as `check`.
    """
    check(row, {**_EPISODE, **(more or {})}, f"{where}: an episode")
    for step in row["steps"]:
        check(step, _STEP, f"{where}: a step of {row['id']}")


def check_results(results: Mapping[str, Any], where: object) -> None:
    """Check that the measures of an evaluation are numbers where it has them.

    Raises:
        DataError: as `check`.
    """
    for row in (*results["rows"], *results["groups"]):
        check(row, {key: _MEASURES[key] for key in row.keys() & _MEASURES.keys()}, f"{where}: a row")
    for group in results["groups"]:
        check(group, {"group": str}, f"{where}: a group")


def check_passage(row: object, where: object, *, named: bool = True) -> None:
    """Check a passage, `named` if its id is among what it holds.

    Raises:
        DataError: as `check`.
    """
    check(row, {**_PASSAGE, **({"id": str} if named else {})}, f"{where}: a passage")

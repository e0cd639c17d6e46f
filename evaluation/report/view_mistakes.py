"""What went wrong in an episode, read from its row of predictions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By name: the heading of its count, and what it means.
MISTAKES = {
    "wrong": ("wrong", "the prediction is none of the accepted answers"),
    "missed": ("wrong, a passage missing", "a wrong answer, and not all gold passages were found"),
    "flawed": ("right but flawed", "a right answer with at least one untrue step"),
    "unresolved": ("right but unresolved", "a right answer that the steps do not establish"),
    "format": ("out of format", "a step, or the whole episode, does not follow the format"),
    "cut": ("cut", "out of steps or tokens, or a text was cut at its limit"),
    "failed": ("failed", "it ended in an error and was not scored"),
}
_BUDGETS = ("step_budget", "token_budget")


def outcome(row: Mapping[str, Any]) -> str:
    """`right`, `wrong`, `failed` after an error, or `unscored` where no answer is known."""
    if row.get("em") is None:
        return "failed" if row.get("status") == "error" else "unscored"
    return "right" if row["em"] == 1 else "wrong"


def mistakes(row: Mapping[str, Any]) -> list[str]:
    """The names of all `MISTAKES` in an episode."""
    ended = outcome(row)
    told = {
        "wrong": ended == "wrong",
        "missed": ended == "wrong" and _known(row, "recall", 1.0) < 1,
        "flawed": ended == "right" and _known(row, "flawed", 0.0) > 0,
        "unresolved": ended == "right" and _known(row, "unresolved", 0.0) > 0,
        "format": _known(row, "valid_episodes", 1.0) < 1 or _known(row, "valid_steps", 1.0) < 1,
        "cut": row.get("status") in _BUDGETS or any((row.get("truncations") or {}).values()),
        "failed": ended == "failed",
    }
    return [name for name in MISTAKES if told[name]]


def judged(row: Mapping[str, Any]) -> set[str]:
    """The names of those `MISTAKES` that the row would tell of: a truth or passages that nobody knows say nothing."""
    measures = {
        "wrong": ("em",),
        "missed": ("recall",),
        "flawed": ("flawed",),
        "unresolved": ("unresolved",),
        "format": ("valid_episodes", "valid_steps"),
    }
    unknown = {name for name, keys in measures.items() if all(row.get(key) is None for key in keys)}
    return MISTAKES.keys() - unknown


def first_untrue(row: Mapping[str, Any]) -> str | None:
    """The kind of the first untrue step; None where all are true, or none was judged."""
    return next((step["kind"] for step in row["steps"] if step.get("truth") is False), None)


def searching(row: Mapping[str, Any]) -> str:
    """`over`, `under`, `both`, or empty: whether it searched more or less than it had to.

    By the oracle's verdicts on searches and on statements without one, where there are any; otherwise too much is a
    search after all gold passages were found (`late`), too little an answer before (`premature`).
    """
    over = row["needless_searches"] if row.get("judged_searches") else row.get("late")
    under = row["unfounded_statements"] if row.get("judged_statements") else row.get("premature")
    return "both" if over and under else "over" if over else "under" if under else ""


def _known(row: Mapping[str, Any], name: str, otherwise: float) -> float:
    value = row.get(name)
    return otherwise if value is None else value

"""Episodes as a page shows them, read from their rows of predictions: what went wrong, and step by step. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.tables import MISSING, figure

Row = dict[str, Any]
Chip = tuple[str, str, float]  # a figure or verdict; good, bad, much or none; how much of this colour, 0 to 1

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
NO_STEP = "no untrue step"
LONGEST = 1500  # characters of what was written in a step
_TITLE, _PASSAGE = 80, 700  # characters
_LOGP = 0.5  # a mean log-probability whose colour is strongest: a trained policy's are of 0.05 to 0.2
_BUDGETS = ("step_budget", "token_budget", "exhausted")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Passages:
    """All passages of a page, each once: `rows` of id, title and text."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self._places: dict[tuple[str, str], int] = {}

    def place(self, id_: str, found: Mapping[str, Row]) -> int | None:
        """The place of a passage among them; None without its text."""
        if id_ not in found:
            return None
        key = id_, found[id_]["text"]
        if key not in self._places:
            self._places[key] = len(self.rows)
            title, text = printable(found[id_]["title"], _TITLE), printable(found[id_]["text"], _PASSAGE)
            self.rows.append((printable(id_, _TITLE), title, text))
        return self._places[key]


def printable(text: object, longest: int = LONGEST) -> str:
    """A text without control characters and lone surrogates, cut with a note where it leaves out more than the note."""
    whole = str(text)
    note = f" … ({len(whole) - longest:,} more characters)"
    cut = len(whole) - longest > len(note)
    return _UNPRINTABLE.sub("�", whole[:longest] if cut else whole) + (note if cut else "")


def outcome(row: Mapping[str, Any]) -> str:
    """`right`, `wrong`, `failed` after an error, or `unscored` where no answer is known."""
    if row.get("em") is None:
        return "failed" if row.get("status") == "error" else "unscored"
    return "right" if row["em"] == 1 else "wrong"


def mistakes(row: Mapping[str, Any]) -> dict[str, bool | None]:
    """Which of the `MISTAKES` an episode has; None where its row cannot show it, such as without verdicts on steps."""
    ended, (recall, flawed, unresolved) = outcome(row), map(row.get, ("recall", "flawed", "unresolved"))
    valid = [share for name in ("valid_episodes", "valid_steps") if (share := row.get(name)) is not None]
    return {
        "wrong": None if row.get("em") is None else ended == "wrong",
        "missed": None if recall is None else ended == "wrong" and recall < 1,
        "flawed": None if flawed is None else ended == "right" and flawed > 0,
        "unresolved": None if unresolved is None else ended == "right" and unresolved > 0,
        "format": min(valid) < 1 if valid else None,
        "cut": row.get("status") in _BUDGETS or any((row.get("truncations") or {}).values()),
        "failed": ended == "failed",
    }


def mistaken(row: Mapping[str, Any]) -> list[str]:
    """The names of the `MISTAKES` that an episode has."""
    return [name for name, made in mistakes(row).items() if made]


def first_untrue(row: Mapping[str, Any]) -> str | None:
    """The kind of the first untrue step of a wrong or flawed episode, `NO_STEP` without one.

    None of all others, and where no step was judged.
    """
    if not has_truth(row) or not {"wrong", "flawed"} & {*mistaken(row)}:
        return None
    return next((printable(step["kind"], 40) for step in row["steps"] if step.get("truth") is False), NO_STEP)


def has_truth(row: Mapping[str, Any]) -> bool:
    """Whether the steps of an episode were judged."""
    return any("truth" in step for step in row["steps"])


def searching(row: Mapping[str, Any]) -> str:
    """`over`, `under`, `both`, or empty: whether it searched more or less than it had to.

    By the oracle's verdicts on searches and on statements without one, where there are any; otherwise too much is a
    search after all gold passages were found (`late`), too little an answer before (`premature`).
    """
    over = row["needless_searches"] if row.get("judged_searches") else row.get("late")
    under = row["unfounded_statements"] if row.get("judged_statements") else row.get("premature")
    return "both" if over and under else "over" if over else "under" if under else ""


def worth(row: Mapping[str, Any]) -> float | None:
    """Sort key of an answer: EM, then F1; None where it was not scored."""
    return None if row["em"] is None else round(row["em"] + (row["f1"] or 0) / 1000, 6)


def shown_question(row: Row) -> Row:
    """The question of a row: text, answers, and the hops that the dataset knows."""
    gold = row.get("gold") or {"steps": []}
    return {
        "id": printable(row["id"], 120),
        "text": printable(row["question"], 600),
        "answers": printable(" / ".join(row["answers"]), 300),
        "hops": row.get("hops"),
        "type": printable(row.get("type") or "", 40),
        "gold": [(printable(hop["question"], 300), printable(hop["answer"], 120)) for hop in gold["steps"]],
    }


def shown_episode(row: Row, found: Mapping[str, Row], passages: Passages) -> Row:
    """Verdicts, prediction and steps of a row; what its steps found is put among the `passages` of the page."""
    return {
        "outcome": outcome(row),
        "status": printable(row["status"], 40),
        "prediction": printable(row["prediction"], 300),
        "scores": f"EM {figure('em', row.get('em'))}, F1 {figure('f1', row.get('f1'))}",
        "error": printable(row.get("error") or "", 300),
        "rewards": [number(printable(name, 40), value) for name, value in (row.get("outcome") or {}).items()],
        "steps": _steps(row, found, passages),
    }


def _steps(row: Row, found: Mapping[str, Row], passages: Passages) -> list[Row]:
    shown: list[Row] = []
    steps: Sequence[Row] = row["steps"]
    gold = _gold_documents(row, found)
    trained = "outcome" in row  # an episode of an evaluation has neither rewards nor advantages
    rewards = list(dict.fromkeys(name for step in steps for name in step.get("rewards") or ()))
    rewards = rewards or (["reward"] if trained else [])
    selects, evidence = any("kept" in step for step in steps), list[str]()
    for step in steps:
        entry: Row = {
            "kind": printable(step["kind"], 40),
            "agent": printable(step.get("agent", ""), 40),
            "chips": _chips(step, rewards, trained),
            "said": printable(step.get("said") or step["text"]),
            "hits": [_hit(id_, step.get("kept"), gold, found, passages) for id_ in step["hits"]],
            "gold": sum(id_ in gold for id_ in step["hits"]),
            "evidence": ", ".join(evidence) or "none" if selects and "kept" not in step else "",
        }
        shown.append(entry)
        evidence += [printable(_title(id_, found), _TITLE) for id_ in step.get("kept", ())]
    return shown


def _chips(step: Row, rewards: Sequence[str], trained: bool) -> list[Chip]:
    given = step.get("rewards") or {}
    chips = [verdict("format", step["valid"]), verdict("true", step.get("truth"))]
    chips += [(name, "bad", 1.0) for name in ("needless", "unfounded") if step.get(name)]
    chips += [number(printable(name, 40), given.get(name), signed=True) for name in rewards]
    chips += [number("advantage", step.get("advantage"), scale=2, signed=True)] if trained else []
    return [*chips, number("log-prob", step.get("logp"), scale=_LOGP)]


def verdict(name: str, value: bool | None) -> Chip:
    """`true ✓`, `true ✗` or, where it is not known, `true –`."""
    return (
        (f"{name} {MISSING}", "", 1.0) if value is None else (f"{name} {'✓✗'[not value]}", ("bad", "good")[value], 1.0)
    )


def number(name: str, value: float | None, *, scale: float = 1.0, signed: bool = False) -> Chip:
    """A coloured figure, strongest at `scale` and beyond; only signed figures are good or bad."""
    if value is None or not math.isfinite(value):
        return f"{name} {MISSING}", "", 1.0
    tone = ("good" if value > 0 else "bad") if signed else "much"
    return f"{name} {value:{'+' if signed else ''}.2f}", tone if value else "", round(min(1.0, abs(value) / scale), 2)


def _hit(
    id_: str, kept: Sequence[str] | None, gold: set[str], found: Mapping[str, Row], passages: Passages
) -> tuple[str, int | None, str]:
    """Title of a passage, its place on the page, and what it is: gold, kept, dropped."""
    marks = ["gold"] if id_ in gold else []
    marks += [] if kept is None else ["kept" if id_ in kept else "dropped"]
    return printable(_title(id_, found), _TITLE), passages.place(id_, found), ", ".join(marks)


def _title(id_: str, found: Mapping[str, Row]) -> str:
    return found[id_]["title"] if id_ in found else id_


def _gold_documents(row: Row, found: Mapping[str, Row]) -> set[str]:
    """The ids of gold documents among those found; by title in a corpus with ids of its own."""
    gold = row.get("gold") or {}
    ids, titles = set(gold.get("documents", ())), {title.strip().lower() for title in gold.get("titles", ())}
    by_title = {id_ for id_, passage in found.items() if passage["title"].strip().lower() in titles}
    return ids if ids & found.keys() or not titles else by_title

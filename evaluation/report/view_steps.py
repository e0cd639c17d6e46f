"""Rows of predictions as they are shown: each step with its chips, what it found, and what the agent held by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import escape

from evaluation.report.view_mistakes import outcome
from evaluation.report.view_text import Chip, Row, number, printable, verdict
from evaluation.tables import figure

_TITLE, _PASSAGE = 80, 700  # characters
_MARKUP = 120  # characters around a passage
_LOGP = 0.5  # a mean log-probability whose colour is strongest: a trained policy's are of 0.05 to 0.2


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage that a step found: `number` is its place on the page, None where its text is not there."""

    title: str
    number: int | None
    marks: str


@dataclass(slots=True)
class Shelf:
    """All passages of a page, each once, until `budget` bytes are full."""

    budget: int
    passages: list[Row] = field(default_factory=list)
    left_out: int = 0
    _places: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def place(self, id_: str, found: Mapping[str, Row]) -> int | None:
        """The number of a passage, which is put on the shelf; None without its text, or without room."""
        passage = found.get(id_)
        if passage is None:
            return None
        key = id_, passage["text"]
        if key not in self._places:
            row = {"id": printable(id_, _TITLE), "title": printable(passage["title"], _TITLE)}
            row["text"] = printable(passage["text"], _PASSAGE)
            size = sum(len(str(escape(text)).encode()) for text in row.values()) + _MARKUP
            fits = size <= self.budget
            self._places[key] = len(self.passages) if fits else None
            self.passages += [row] if fits else []
            self.budget -= size if fits else 0
            self.left_out += not fits
        return self._places[key]

    def mark(self) -> tuple[int, int, int, int]:
        """What `back` needs to take away all that is put on the shelf from now on."""
        return self.budget, len(self.passages), self.left_out, len(self._places)

    def back(self, mark: tuple[int, int, int, int]) -> None:
        """The shelf as it was: an episode without room leaves no passages behind."""
        self.budget, passages, self.left_out, places = mark
        del self.passages[passages:]
        for key in list(self._places)[places:]:
            del self._places[key]


def shown_episode(row: Row, found: Mapping[str, Row], shelf: Shelf, **more: Any) -> Row:
    """What a template needs of a row: verdicts, prediction, steps. `more` is added as it is."""
    gold = _gold_documents(row, found)
    return {
        "outcome": outcome(row),
        "status": row["status"],
        "prediction": printable(row["prediction"], 300),
        "scores": f"EM {figure('em', row.get('em'))}, F1 {figure('f1', row.get('f1'))}",
        "error": printable(row.get("error") or "", 300),
        "rewards": [number(name, value) for name, value in (row.get("outcome") or {}).items()],
        "steps": list(_steps(row, gold, found, shelf)),
    } | more


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


def _steps(row: Row, gold: set[str], found: Mapping[str, Row], shelf: Shelf) -> list[Row]:
    shown: list[Row] = []
    steps: Sequence[Row] = row["steps"]
    trained = "outcome" in row  # an episode of an evaluation has neither rewards nor advantages
    rewards = list(dict.fromkeys(name for step in steps for name in step.get("rewards") or ()))
    rewards = rewards or (["reward"] if trained else [])
    selects, evidence = any("kept" in step for step in steps), list[str]()
    for place, step in enumerate(steps, 1):
        hits = [_passage(id_, step.get("kept"), gold, found, shelf) for id_ in step["hits"]]
        shown.append(
            {
                "number": place,
                "kind": printable(step["kind"], 40),
                "agent": printable(step.get("agent", ""), 40),
                "chips": _chips(step, rewards, trained),
                "said": printable(step.get("said") or step["text"]),
                "hits": hits,
                "gold_hits": sum(id_ in gold for id_ in step["hits"]),
                "evidence": ", ".join(evidence) or "none" if selects and "kept" not in step else "",
            }
        )
        evidence += [printable(_title(id_, found), _TITLE) for id_ in step.get("kept", ())]
    return shown


def _chips(step: Row, rewards: Sequence[str], trained: bool) -> list[Chip]:
    given = step.get("rewards") or {}
    chips = [verdict("format", step["valid"]), verdict("true", step.get("truth"))]
    chips += [Chip("needless search", "bad")] if step.get("needless") else []
    chips += [Chip("unfounded", "bad")] if step.get("unfounded") else []
    chips += [number(name, given.get(name), signed=True) for name in rewards]
    chips += [number("advantage", step.get("advantage"), scale=2, signed=True)] if trained else []
    return [*chips, number("log-prob", step.get("logp"), scale=_LOGP)]


def _passage(id_: str, kept: Sequence[str] | None, gold: set[str], found: Mapping[str, Row], shelf: Shelf) -> Passage:
    marks = ["gold"] if id_ in gold else []
    marks += [] if kept is None else ["kept" if id_ in kept else "dropped"]
    return Passage(printable(_title(id_, found), _TITLE), shelf.place(id_, found), ", ".join(marks))


def _title(id_: str, found: Mapping[str, Row]) -> str:
    return found[id_]["title"] if id_ in found else id_


def _gold_documents(row: Row, found: Mapping[str, Row]) -> set[str]:
    """The ids of gold documents among those found; by title in a corpus with ids of its own."""
    gold = row.get("gold") or {}
    ids, titles = set(gold.get("documents", ())), {title.strip().lower() for title in gold.get("titles", ())}
    by_title = {id_ for id_, passage in found.items() if passage["title"].strip().lower() in titles}
    return ids if ids & found.keys() or not titles else by_title

"""First rows of an experiment's inputs: a question of each source and a passage of each corpus, as they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from common.plain_text import one_line
from pipeline.components import build, is_component
from pipeline.fingerprints import canonical, is_path, stage_names
from pipeline.locations import Key, Locations, children
from pipeline.plan import Plan

_LONGEST = 160  # characters of a text
_CHOICES = ("part", "limit", "sample", "seed", "split")  # they choose among the rows of an input


def first_rows(plan: Plan) -> str:
    """A line for the first question of each input, and one for the first passage of each corpus, of stages to run.

    Of several choices from one input the first is shown. What other stages make is left out.

    Raises:
        DataError: an input is missing or malformed.
    """
    lines: dict[str, str] = {}
    for name in plan.chosen:
        if not plan.stages[name].done:
            for key, source in _inputs(dataclasses.asdict(plan.stages[name].stage), ("stages", name)):
                identity = canonical({part: item for part, item in source.items() if part not in _CHOICES})
                if identity not in lines:
                    lines[identity] = _line(key, source, plan.locations)
    return "\n".join(lines.values())


def _inputs(value: object, key: Key) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Sources of questions, and readers of corpora, that need no other stage."""
    for name, item in children(value):
        where = (*key, name)
        if name == "questions" and is_component(item) and not stage_names(item):
            yield where, item
        elif name == "corpus" and isinstance(item, str) and is_path(item) and not stage_names(item):
            yield where, {"target": "envs.retrievers.corpus:passages", "path": item}
        yield from _inputs(item, where)


def _line(key: Key, source: dict[str, Any], locations: Locations) -> str:
    first = next(iter(build(source, key, locations, {})), None)
    if first is None:
        return f"nothing in {locations.at(key)}"
    if key[-1] == "questions":
        what, text, rest = "question", first.text, " / ".join(first.answers)
    else:
        what, text, rest = "passage", first.title, first.text
    return f"first {what} of {locations.at(key)}: {first.id} | {_short(text)} | {_short(rest)}"


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"

"""No question leaks: evaluation questions have no other role, and RL questions are in neither search nor refinement.

What a callback asks during a fit, or is of a `split: dev`, has the role `dev`: weights and settings may be chosen on
it, so no other evaluation may share it.

A component that takes questions has an argument `questions`, a source, and a `role`: an argument or a class attribute.
A component that only looks questions up (gold passages, say) has `role = None` and is not compared; nor is a source
with `role = None`: facts that a policy is meant to know, in training and in evaluation alike. A component without a
role is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.answers import normalize_answer
from common.errors import ConfigError
from common.terminal import say
from pipeline.components import build, is_component, locate
from pipeline.fingerprints import canonical, stage_names, with_folders
from pipeline.locations import Key, Locations, children, suggest
from pipeline.plan import Plan
from pipeline.skeletons import read_or_imported

ROLES = ("eval", "dev", "sft", "search", "refine", "rl")
_FORBIDDEN = {frozenset({held_out, other}) for held_out in ROLES[:2] for other in ROLES if other != held_out} | {
    frozenset({"rl", other}) for other in ("search", "refine")
}
_ROW_NUMBER = re.compile(r"([a-z]+-)?\d+")  # a row number identifies a question in its own file only


@dataclass(frozen=True)
class _Use:
    """A source of questions, its role, and the key it is written at."""

    role: str
    key: Key
    source: dict[str, Any]


@dataclass(frozen=True)
class _Questions:
    """A source's questions: normalised text by id, in order; ids and texts to compare other questions with."""

    texts: dict[str, str]
    ids: frozenset[str]
    wordings: frozenset[str]

    def shared(self, other: _Questions) -> list[str]:
        """Ids of the questions that the other source shares, by id or by text, in order."""
        return [i for i, text in self.texts.items() if text in other.wordings or _identity(i) in other.ids]


class Leaks:
    """Compares the questions of the chosen stages across roles, each source as soon as it can be read."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._uses: list[_Use] | None = None
        self._questions: dict[str, _Questions] = {}
        self._compared: set[frozenset[str]] = set()

    def check(self) -> None:
        """Compare all sources that can be read and have not been compared; print a note on overlaps that are allowed.

        Sources inside unfinished stages are compared by their settings, and read when those stages are finished.
        Nothing is read where no stage would run: the questions were compared when the artifacts were made.

        Raises:
            ConfigError: a question has two roles that must not share any; names both places.
            DataError: a source's file is missing or malformed.
        """
        if self._plan.done:
            return
        if self._uses is None:
            self._uses = read_or_imported(lambda: list(_uses(self._plan)))
        for a, b in itertools.combinations(self._uses, 2):
            pair = frozenset((f"{a.role} {canonical(a.source)}", f"{b.role} {canonical(b.source)}"))
            if a.role == b.role or pair in self._compared:
                continue
            first, second = self._read(a), self._read(b)
            if first is not None and second is not None:
                self._compared.add(pair)
                if shared := first.shared(second):
                    self._report(a, b, f"{len(shared)} of the questions, {shared[0]} the first,")
            elif _same_questions(a.source, b.source) and frozenset((a.role, b.role)) in _FORBIDDEN:
                self._report(a, b, "the same questions")

    def _read(self, use: _Use) -> _Questions | None:
        """The questions of a source; None where a stage it depends on is unfinished."""
        artifacts = {name: self._plan.stages[name].artifact for name in stage_names(use.source)}
        if not all(artifact.complete for artifact in artifacts.values()):
            return None
        name = canonical(use.source)
        if name not in self._questions:
            settings = with_folders(use.source, {stage: artifact.folder for stage, artifact in artifacts.items()})
            source = build(settings, use.key, self._plan.locations, {})
            texts = {question.id: normalize_answer(question.text) for question in source}
            ids = frozenset(own for own in map(_identity, texts) if own)
            self._questions[name] = _Questions(texts, ids, frozenset(texts.values()) - {""})
        return self._questions[name]

    def _report(self, a: _Use, b: _Use, what: str) -> None:
        locations = self._plan.locations
        message = f"{what} for {a.role} at {locations.at(a.key)} and for {b.role} at {locations.at(b.key)}"
        if frozenset((a.role, b.role)) in _FORBIDDEN:
            raise ConfigError(f"leak: {message}; choose another split, or a part that does not overlap")
        say(f"note: {message}")


def _uses(plan: Plan) -> Iterator[_Use]:
    for name in plan.chosen:
        yield from _uses_in(dataclasses.asdict(plan.stages[name].stage), ("stages", name), plan.locations)


def _uses_in(value: object, key: Key, locations: Locations) -> Iterator[_Use]:
    if is_component(value) and is_component(source := value.get("questions")):
        role = _role(value, key, locations) if _compared(source, key, locations) else None
        if role is not None and role not in ROLES:
            raise ConfigError(f"unknown role '{role}' at {locations.at(key)}{suggest(role, ROLES)}")
        if role == "eval" and (key[2] == "callbacks" or "dev" in (value.get("split"), source.get("split"))):
            role = "dev"
        if role is not None:
            yield _Use(role, (*key, "questions"), source)
    for name, item in children(value):
        yield from _uses_in(item, (*key, name), locations)


def _compared(source: dict[str, Any], key: Key, locations: Locations) -> bool:
    return getattr(locate(source["target"], (*key, "questions"), locations), "role", "") is not None


def _role(component: dict[str, Any], key: Key, locations: Locations) -> str | None:
    """The role that a component has in its config, class or signature; None where it only looks questions up.

    Raises:
        ConfigError: the component has no role.
    """
    target = locate(component["target"], key, locations)
    parameter = inspect.signature(target).parameters.get("role")
    if "role" in component:
        return component["role"]
    if hasattr(target, "role"):
        return target.role  # type: ignore[attr-defined]
    if parameter is not None and parameter.default is not parameter.empty:
        return parameter.default
    raise ConfigError(
        f"{component['target']} at {locations.at(key)} takes questions and has no role: give its class role = one of "
        f"{', '.join(ROLES)}, or an argument role, or role = None where it trains and evaluates nothing with them"
    )


def _same_questions(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two sources certainly share questions, judged by their settings alone."""
    differ = {name for name in (a.keys() | b.keys()) if a.get(name) != b.get(name)}
    if differ <= {"sample"}:  # the head of the same order
        return True
    if differ & {"limit", "part"} != differ or a.get("sample") or b.get("sample"):
        return False
    low, high = zip(a.get("part") or (0.0, 1.0), b.get("part") or (0.0, 1.0), strict=True)
    return max(low) < min(high) and ("part" not in differ or not (a.get("limit") or b.get("limit")))


def _identity(question: str) -> str | None:
    """The dataset's own id, without the prefix of a mixture; None where it is a row number."""
    own = question.rpartition("/")[2]
    return None if _ROW_NUMBER.fullmatch(own) else own

"""No question leaks: evaluation questions have no other role, and RL questions are in neither search nor refinement.

What a callback asks during a fit, or is of a `split: dev`, has the role `dev`: weights and settings may be chosen on
it, so no other evaluation may share it.

A component that takes questions has an argument `questions`, a source, and a `role`: an argument or a class attribute.
One that only quotes questions (a lookup of gold passages, say) has `role = None` and is left out. A component that says
nothing is an error.
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
from pipeline.components import build, is_component, locate
from pipeline.fingerprints import canonical, stage_names, with_folders
from pipeline.origins import Key, Origins, children, suggest
from pipeline.plan import Plan

ROLES = ("eval", "dev", "sft", "search", "refine", "rl")
_FORBIDDEN = {frozenset({asked, other}) for asked in ROLES[:2] for other in ROLES if other != asked} | {
    frozenset({"rl", other}) for other in ("search", "refine")
}
_ROW_NUMBER = re.compile(r"([a-z]+-)?\d+")  # an id that counts the rows of its file tells nothing about another file


@dataclass(frozen=True)
class _Use:
    """What a source's questions are for, and where that is written."""

    role: str
    key: Key
    source: dict[str, Any]


@dataclass(frozen=True)
class _Read:
    """A source's questions: ids in order, each with its text; what tells them from others, ids and texts apart."""

    texts: dict[str, str]
    ids: frozenset[str]
    wordings: frozenset[str]

    def shared(self, other: _Read) -> list[str]:
        """Ids of the questions that the other source has too, by id or by text, in order."""
        return [i for i, text in self.texts.items() if text in other.wordings or _identity(i) in other.ids]


class Leaks:
    """Compares the questions of the chosen stages by what they are for, each source as soon as it can be read."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._uses: list[_Use] | None = None
        self._questions: dict[str, _Read] = {}
        self._compared: set[frozenset[str]] = set()

    def check(self) -> None:
        """Compare what can be read by now and has not been compared; print what overlaps where it may.

        Sources inside stages that are not made yet are compared by their settings, and read when those stages are.
        Nothing is read where nothing would run: whoever made an evaluation compared it with all that it rests on.

        Raises:
            ConfigError: a question is in two roles that must not share any; names both places.
            DataError: a source's file is missing or malformed.
        """
        if self._plan.done:
            return
        if self._uses is None:
            self._uses = list(_uses(self._plan))
        for a, b in itertools.combinations(self._uses, 2):
            pair = frozenset((f"{a.role} {canonical(a.source)}", f"{b.role} {canonical(b.source)}"))
            if a.role == b.role or pair in self._compared:
                continue
            first, second = self._read(a), self._read(b)
            if first is not None and second is not None:
                self._compared.add(pair)
                if shared := first.shared(second):
                    self._tell(a, b, f"{len(shared)} of the questions, {shared[0]} the first,")
            elif _same_questions(a.source, b.source) and frozenset((a.role, b.role)) in _FORBIDDEN:
                self._tell(a, b, "the same questions")

    def _read(self, use: _Use) -> _Read | None:
        """The questions of a source, None where a stage it needs is not complete yet."""
        artifacts = {name: self._plan.stages[name].artifact for name in stage_names(use.source)}
        if not all(artifact.complete for artifact in artifacts.values()):
            return None
        name = canonical(use.source)
        if name not in self._questions:
            settings = with_folders(use.source, {stage: artifact.folder for stage, artifact in artifacts.items()})
            source = build(settings, use.key, self._plan.origins, {})
            texts = {question.id: normalize_answer(question.text) for question in source}
            ids = frozenset(one for one in map(_identity, texts) if one)
            self._questions[name] = _Read(texts, ids, frozenset(texts.values()) - {""})
        return self._questions[name]

    def _tell(self, a: _Use, b: _Use, what: str) -> None:
        origins = self._plan.origins
        told = f"{what} for {a.role} at {origins.at(a.key)} and for {b.role} at {origins.at(b.key)}"
        if frozenset((a.role, b.role)) in _FORBIDDEN:
            raise ConfigError(f"leak: {told}; choose another split, or a part that does not overlap")
        print(f"note: {told}", flush=True)


def _uses(plan: Plan) -> Iterator[_Use]:
    for name in plan.chosen:
        yield from _uses_in(dataclasses.asdict(plan.stages[name].stage), ("stages", name), plan.origins)


def _uses_in(value: object, key: Key, origins: Origins) -> Iterator[_Use]:
    if is_component(value) and is_component(source := value.get("questions")):
        role = _role(value, key, origins)
        if role is not None and role not in ROLES:
            raise ConfigError(f"unknown role '{role}' at {origins.at(key)}{suggest(role, ROLES)}")
        if role == "eval" and (key[2] == "callbacks" or "dev" in (value.get("split"), source.get("split"))):
            role = "dev"
        if role is not None:
            yield _Use(role, (*key, "questions"), source)
    for name, item in children(value):
        yield from _uses_in(item, (*key, name), origins)


def _role(component: dict[str, Any], key: Key, origins: Origins) -> str | None:
    """The role that a component has in its config, class or signature; None for one that only quotes questions.

    Raises:
        ConfigError: it says nowhere what its questions are for.
    """
    target = locate(component["target"], key, origins)
    parameter = inspect.signature(target).parameters.get("role")
    if "role" in component:
        return component["role"]
    if hasattr(target, "role"):
        return target.role  # type: ignore[attr-defined]
    if parameter is not None and parameter.default is not parameter.empty:
        return parameter.default
    raise ConfigError(
        f"{component['target']} at {origins.at(key)} takes questions and has no role: give its class role = one of "
        f"{', '.join(ROLES)}, or an argument role, or role = None where it trains and evaluates nothing with them"
    )


def _same_questions(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two sources share questions for certain, by their settings alone."""
    differ = {name for name in (a.keys() | b.keys()) if a.get(name) != b.get(name)}
    if differ <= {"sample"}:  # the head of the same order
        return True
    if differ & {"limit", "part"} != differ or a.get("sample") or b.get("sample"):
        return False
    low, high = zip(a.get("part") or (0.0, 1.0), b.get("part") or (0.0, 1.0), strict=True)
    return max(low) < min(high) and ("part" not in differ or not (a.get("limit") or b.get("limit")))


def _identity(question: str) -> str | None:
    """The dataset's own id, without the name that a mixture puts before it; None where it only counts rows."""
    own = question.rpartition("/")[2]
    return None if _ROW_NUMBER.fullmatch(own) else own

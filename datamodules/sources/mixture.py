"""Several sources as one."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from common.errors import ConfigError
from common.seeds import stable_hash
from datamodules.sources import Part, Source, check_choice, choose
from envs.types import Document, Question


class Mixture:
    """Named sources, one after another or, with `weights`, interleaved.

    Ids of questions and passages always become `name/id`, so ids of two sources cannot clash. Passages are not compared
    across sources. With weights, each draw takes the next question of a source that hash(seed, draw) picks in
    proportion to the weights of the sources not yet exhausted. Every question comes once, and the proportions hold for
    a `limit` that exhausts none. `part`, `limit`, `sample`: see `datamodules.sources.choose`.

    Raises:
        ConfigError: no source, or weights that do not name just these sources or are not positive.
    """

    def __init__(
        self,
        sources: dict[str, Source],
        *,
        weights: dict[str, float] | None = None,
        part: Part | None = None,
        limit: int | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        if not sources:
            raise ConfigError("mixture: no sources")
        if weights is not None and (weights.keys() != sources.keys() or not all(w > 0 for w in weights.values())):
            raise ConfigError(f"mixture: weights must give a positive number for each of {', '.join(sources)}")
        check_choice(part=part, limit=limit, sample=sample)
        self.sources, self.weights = sources, weights
        self.part, self.limit, self.sample, self.seed = part, limit, sample, seed

    def __iter__(self) -> Iterator[Question]:
        return choose(self._questions(), part=self.part, limit=self.limit, sample=self.sample, seed=self.seed)

    def documents(self) -> Iterator[Document]:
        for name, source in self.sources.items():
            for document in source.documents():
                yield replace(document, id=f"{name}/{document.id}")

    def _questions(self) -> Iterator[Question]:
        if self.weights is None:
            for name, source in self.sources.items():
                for question in source:
                    yield _renamed(question, name)
            return
        streams = {name: iter(source) for name, source in self.sources.items()}
        draw = 0
        while streams:
            name = _pick({name: self.weights[name] for name in streams}, stable_hash(self.seed, "mixture", draw))
            draw += 1
            question = next(streams[name], None)
            if question is None:
                del streams[name]
            else:
                yield _renamed(question, name)


def _pick(weights: Mapping[str, float], number: int) -> str:
    """The name that a 63-bit number selects, in proportion to the weights."""
    names, ends = list(weights), list(accumulate(weights.values()))
    return names[min(bisect(ends, number / 2**63 * ends[-1]), len(names) - 1)]


def _renamed(question: Question, name: str) -> Question:
    gold = question.gold
    if gold is not None:
        steps = tuple(replace(step, documents=_named(name, step.documents)) for step in gold.steps)
        gold = replace(gold, documents=_named(name, gold.documents), steps=steps)
    return replace(question, id=f"{name}/{question.id}", gold=gold)


def _named(name: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}/{identifier}" for identifier in ids)

"""Labels of Adaptive-RAG's router as a stage: the simplest route that answered a training question rightly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from common.answers import exact_match
from common.errors import ConfigError, DataError
from common.files import write_json
from datamodules.records import EPISODE, episode_from_row, question_to_row, read_rows, write_rows
from datamodules.sources import Source
from envs.types import Episode, Question
from systems.adaptive_rag.router import LETTERS

_DROPPED, _INCOMPLETE = _LEFT_OUT = ("dropped", "incomplete")


class RouteLabels:
    """Record stage of `data/questions.jsonl`, whose answers are letters, and of their counts, `data/labels.json`.

    A question gets the first letter whose answer is exactly right. It is `dropped` where none is, and `incomplete`
    where a route has no episode of it. More `questions` get B if they take one hop and C if they take more, whatever
    was answered: the paper's "bias" labels. They follow the others, and none is labelled twice. The pipeline refuses to
    evaluate on a question of either kind.

    Args:
        paths: stage folder of the episodes of each route, by letter; the first episode of a question counts.
        questions: further ones, labelled by their hops; None: none.

    Raises:
        ConfigError: a route is missing; on making, a question does not say how many hops it takes.
        DataError: on making, no question gets a letter.
    """

    role: ClassVar[str] = "sft"

    def __init__(self, paths: dict[str, Path], *, questions: Source | None = None) -> None:
        if sorted(paths) != sorted(LETTERS):
            raise ConfigError(f"paths are {', '.join(paths) or 'empty'}; give one for each of {', '.join(LETTERS)}")
        self.paths, self.questions = {letter: Path(paths[letter]) for letter in LETTERS}, questions

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Write the labels, on rank 0; the counts come last, so labels that have them are complete and are kept."""
        if rank or (folder / "data" / "labels.json").exists():
            return
        counts = dict.fromkeys((*LETTERS, *_LEFT_OUT, *map(_by_hops, LETTERS[1:])), 0)
        asked: set[str] = set()
        labelled: list[Question] = []
        for question, label in [*self._answered(), *self._more()]:
            if question.id not in asked:
                asked.add(question.id)
                counts[label] += 1
                if label not in _LEFT_OUT:
                    labelled.append(replace(question, answers=(label[-1],)))
        if not labelled:
            raise DataError(f"no question of {len(asked)} has a route that answers it: {counts}")
        write_rows(folder / "data" / "questions.jsonl", map(question_to_row, labelled))
        write_json(folder / "data" / "labels.json", counts)

    def _answered(self) -> Iterator[tuple[Question, str]]:
        """Every question that a route has an episode of, with its letter or why it has none."""
        routes = [_first_episodes(path) for path in self.paths.values()]
        for identity in dict.fromkeys(identity for route in routes for identity in route):
            episodes = [route[identity] for route in routes if identity in route]
            right = [bool(exact_match(one.answer, one.question.answers)) for one in episodes]
            yield episodes[0].question, simplest(right) if len(right) == len(LETTERS) else _INCOMPLETE

    def _more(self) -> Iterator[tuple[Question, str]]:
        for question in self.questions or ():
            if question.gold is None or question.gold.hops is None:
                raise ConfigError(f"question {question.id} does not say how many hops it takes: leave `questions` out")
            yield question, _by_hops("B" if question.gold.hops == 1 else "C")

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Headline: how many questions got each letter, by answers and by hops, and how many were dropped and why."""
        counts = json.loads((folder / "data" / "labels.json").read_text(encoding="utf-8"))
        return {name: float(count) for name, count in counts.items()}


def simplest(right: Sequence[bool]) -> str:
    """The letter of the first route that is right, `dropped` where none is."""
    return next((letter for letter, is_right in zip(LETTERS, right, strict=True) if is_right), _DROPPED)


def _by_hops(letter: str) -> str:
    return f"hops/{letter}"


def _first_episodes(stage: Path) -> dict[str, Episode]:
    """The first episode of each question, by its id."""
    episodes: dict[str, Episode] = {}
    for row in read_rows(stage / "data" / "episodes.jsonl", EPISODE):
        episode = episode_from_row(row)
        episodes.setdefault(episode.question.id, episode)
    return episodes

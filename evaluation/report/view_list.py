"""The list of episodes: grouped by question, counted by mistake, compared by arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evaluation.report.view_mistakes import MISTAKES, first_untrue, judged, mistakes, outcome, searching
from evaluation.report.view_run import Answers
from evaluation.report.view_steps import shown_question
from evaluation.report.view_text import Row, printable

NO_STEP = "no untrue step"


@dataclass(slots=True)
class Listed:
    """An episode: which of the `Answers` it is of, its question, its mistakes, and its text where the page has it."""

    of: int
    question: int
    row: Row
    mistakes: list[str]
    number: int
    markup: str = ""


@dataclass(slots=True)
class Asked:
    """A question with the episodes of all arms; `shown` is what a template needs of it."""

    number: int
    dataset: str
    shown: Row
    episodes: list[Listed] = field(default_factory=list)


@dataclass(slots=True)
class EpisodeList:
    """All questions and episodes of a page."""

    answers: Sequence[Answers]
    questions: list[Asked]
    episodes: list[Listed]

    @property
    def arms(self) -> list[str]:
        """The names of all arms, each once."""
        return list(dict.fromkeys(each.arm for each in self.answers))

    def on_page(self) -> list[Asked]:
        """The questions of which the page has an episode."""
        return [question for question in self.questions if any(episode.markup for episode in question.episodes)]

    def counts(self) -> list[Row]:
        """For each arm and dataset: its episodes, and by mistake all episodes that have it; None if none was judged."""
        return [
            {
                "arm": each.arm,
                "dataset": each.dataset,
                "n": len(each.rows),
                "cells": [
                    self._cell(of, name, lambda one, name=name: name in one.mistakes, known=name in known)
                    for name in MISTAKES
                ],
            }
            for of, each in enumerate(self.answers)
            for known in [set[str]().union(*map(judged, each.rows))]
        ]

    def untrue(self) -> tuple[list[str], list[Row]]:
        """Of wrong and of flawed episodes the kind of their first untrue step: the kinds, and a row an arm."""
        checked = [one for one in self.episodes if _has_truth(one)]
        kinds = sorted({first_untrue(one.row) or NO_STEP for one in checked if _went_wrong(one)} - {NO_STEP})
        rows: list[Row] = []
        for of in dict.fromkeys(one.of for one in checked):
            each = self.answers[of]
            cells = [
                self._cell(of, f"untrue-{kind}", lambda one, kind=kind: first_mistake(one) == kind)
                for kind in (*kinds, NO_STEP)
            ]
            rows.append({"arm": each.arm, "dataset": each.dataset, "cells": cells})
        return [*kinds, NO_STEP], rows

    def _cell(self, of: int, name: str, fits: Callable[[Listed], bool], *, known: bool = True) -> Row:
        """A count with its own list: `id` names the list, `shown` are its episodes on the page; no count if unknown."""
        members = [one for one in self.episodes if one.of == of and fits(one)]
        shown = [one for one in members if one.markup]
        return {
            "id": f"list-{of}-{name.replace(' ', '-')}",
            "name": name,
            "count": len(members) if known else None,
            "shown": shown,
        }


def listed(answers: Sequence[Answers]) -> EpisodeList:
    """All episodes, grouped by question: one question is the same id, text and answers on the same dataset."""
    questions: dict[tuple[str, ...], Asked] = {}
    episodes: list[Listed] = []
    for of, each in enumerate(answers):
        for row in each.rows:
            key = (each.dataset, row["id"], row["question"], *row["answers"])
            asked = questions.get(key)
            if asked is None:
                asked = questions[key] = Asked(len(questions), each.dataset, shown_question(row))
            elif not asked.shown["gold"]:
                asked.shown = shown_question(row)
            episode = Listed(of, asked.number, row, mistakes(row), len(episodes))
            episodes.append(episode)
            asked.episodes.append(episode)
    return EpisodeList(answers, list(questions.values()), episodes)


def differences(page: EpisodeList, first: str, second: str) -> list[tuple[Asked, Listed, Listed]]:
    """The questions that two arms answered differently well, the largest difference of EM, then F1, first.

    What was not scored differs from nothing. Of one size, differences in favour of the second arm and of the first take
    turns: a list that is cut shows both.
    """
    pairs = []
    for question in page.questions:
        by_arm = {page.answers[episode.of].arm: episode for episode in question.episodes}
        sides = [by_arm[arm] for arm in (first, second) if arm in by_arm and by_arm[arm].row["em"] is not None]
        if len(sides) == 2:
            one, other = sides
            changed = tuple(other.row[measure] - one.row[measure] for measure in ("em", "f1"))
            if any(changed):
                better = changed > (0.0, 0.0)
                pairs.append((tuple(-abs(value) for value in changed), better, question, one, other))
    pairs.sort(key=lambda pair: (pair[0], pair[2].number))
    so_far: Counter[tuple[object, bool]] = Counter()
    turns = []
    for pair in pairs:
        so_far[pair[:2]] += 1
        turns.append((pair[0], so_far[pair[:2]], not pair[1], pair))
    return [pair[2:] for *_, pair in sorted(turns, key=lambda turn: turn[:3])]


def worths(page: EpisodeList, question: Asked) -> str:
    """How well each arm answered a question, also where the page has no room for its episode: `arm:worth` by spaces.

    The worth is EM, and where that is the same, F1, or `failed`; an arm is its place among `page.arms`.
    """
    arms = {arm: place for place, arm in enumerate(page.arms)}
    told = ((arms[page.answers[one.of].arm], one.row) for one in question.episodes)
    return " ".join(f"{arm}:{_worth(row)}" for arm, row in told if outcome(row) != "unscored")


def attributes(episode: Listed) -> Row:
    """What the filters of a page ask of an episode."""
    return {
        "arm": episode.of,
        "outcome": outcome(episode.row),
        "mistakes": " ".join(episode.mistakes),
        "searching": searching(episode.row),
        "status": printable(episode.row["status"], 40),
    }


def _worth(row: Row) -> str:
    return "failed" if row["em"] is None else f"{row['em'] + row['f1'] / 1000:.4g}"


def _went_wrong(episode: Listed) -> bool:
    return "wrong" in episode.mistakes or "flawed" in episode.mistakes


def _has_truth(episode: Listed) -> bool:
    return any("truth" in step for step in episode.row["steps"])


def first_mistake(episode: Listed) -> str | None:
    """The kind of the first untrue step of a wrong or flawed episode, `NO_STEP` without one; None of all others."""
    if not (_went_wrong(episode) and _has_truth(episode)):
        return None
    return first_untrue(episode.row) or NO_STEP

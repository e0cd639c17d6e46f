"""The arms of a page: their questions and episodes, what went wrong in them, and where two of them differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from evaluation.report.episodes import (
    MISTAKES,
    Passages,
    first_untrue,
    has_truth,
    mistaken,
    mistakes,
    outcome,
    printable,
    searching,
    shown_episode,
    shown_question,
    worth,
)
from evaluation.report.run import Answers, Run
from evaluation.tables import MISSING

Row = dict[str, Any]
Changes = tuple[list[str], list[list[str]]]  # header and cells of what each stage of a run changed
FAULTLESS = 100  # questions of a dataset that are on a page though no arm made a mistake on them
_DIFFERENCES = 40  # questions in the table of two arms


@dataclass(slots=True)
class Asked:
    """A question with the rows of all arms that answered it, each with the place of its `Answers`."""

    dataset: str
    rows: list[tuple[int, Row]] = field(default_factory=list)

    @property
    def notable(self) -> bool:
        """Whether an arm made a mistake on it, or arms did not do equally well."""
        rows = [row for _, row in self.rows]
        return any(map(mistaken, rows)) or len({worth(row) for row in rows}) > 1


def by_question(answers: Sequence[Answers]) -> list[Asked]:
    """All episodes by question: one question is the same id, text and answers on the same dataset."""
    questions: dict[tuple[str, ...], Asked] = {}
    for of, each in enumerate(answers):
        for row in each.rows:
            key = (each.dataset, row["id"], row["question"], *row["answers"])
            questions.setdefault(key, Asked(each.dataset)).rows.append((of, row))
    return list(questions.values())


def on_page(questions: Sequence[Asked]) -> list[Asked]:
    """The questions that a page shows, in their order: all notable ones, and some that were answered well.

    A question keeps all of its episodes, so that every count leads to an episode next to those of the other arms.
    """
    faultless: Counter[str] = Counter()
    kept: list[Asked] = []
    for question in questions:
        faultless[question.dataset] += not question.notable
        if question.notable or faultless[question.dataset] <= FAULTLESS:
            kept.append(question)
    return kept


def shown(questions: Iterable[Asked], answers: Sequence[Answers], passages: Passages) -> list[Row]:
    """Questions with their episodes, and what the filters of a page ask of these."""
    return [
        shown_question(next((row for _, row in question.rows if row.get("gold")), question.rows[0][1]))
        | {
            "dataset": question.dataset,
            "episodes": [
                shown_episode(row, answers[of].passages, passages)
                | {"arm": answers[of].arm, "mistakes": mistaken(row), "searching": searching(row)}
                | {"untrue": first_untrue(row), "worth": worth(row)}
                for of, row in question.rows
            ],
        }
        for question in questions
    ]


def counts(answers: Iterable[Answers]) -> list[Row]:
    """For each arm and dataset its episodes, those with each mistake, and the wrong and flawed by first untrue step.

    None where no episode was judged for it.
    """
    counted: list[Row] = []
    for each in answers:
        made = [mistakes(row) for row in each.rows]
        known = {name: [has for one in made if (has := one[name]) is not None] for name in MISTAKES}
        by_mistake = {name: sum(values) if values else None for name, values in known.items()}
        untrue = Counter(kind for row in each.rows if (kind := first_untrue(row)))
        by_step = dict(untrue) if any(map(has_truth, each.rows)) else None
        counted.append({"arm": each.arm, "dataset": each.dataset, "n": len(each.rows)})
        counted[-1] |= {"mistakes": by_mistake, "untrue": by_step}
    return counted


def compared(pairs: Iterable[tuple[str, str]], questions: Sequence[Asked], answers: Sequence[Answers]) -> Row | None:
    """The first of `pairs` that differ: its two arms, and on how many questions the second did better and worse.

    A row has the question's place and text, the differences of EM and F1, and both predictions. None if no pair does.
    """
    for first, second in pairs:
        if found := _differences(questions, answers, first, second):
            changed = [other["em"] - one["em"] for _, one, other in found]
            summary = {"first": first, "second": second, "better": sum(c > 0 for c in changed)}
            rows = [
                (
                    place,
                    printable(one["question"], 110),
                    f"{100 * (other['em'] - one['em']):+.0f}",
                    f"{100 * (other['f1'] - one['f1']):+.1f}",
                    *(printable(row["prediction"], 60) or "(none)" for row in (one, other)),
                )
                for place, one, other in found
            ]
            worse = sum(c < 0 for c in changed)
            return summary | {"worse": worse, "rows": rows[:_DIFFERENCES], "more": len(rows[_DIFFERENCES:])}
    return None


def pairs_of_interest(
    runs: Sequence[Run], changed: Sequence[Changes], names: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Pairs of arms, those that a reader wants to see compared first.

    In order: the last arms of two runs of one seed; of each run the pairs that its stages `changed`; neighbouring arms.
    """
    arms = {run.folder: [name for name in dict.fromkeys(names) if name.startswith(run.prefix)] for run in runs}
    last = {run.folder: found[-1] for run in runs if (found := arms[run.folder])}
    for seed in dict.fromkeys(run.seed for run in runs):
        yield from pairwise(last[run.folder] for run in runs if run.seed == seed and run.folder in last)
    for run, (_, rows) in zip(runs, changed, strict=True):
        yield from _trained(run, rows)
        yield from reversed(list(pairwise(arms[run.folder])))
    yield from pairwise(last.values())


def mended(
    runs: Sequence[Run], changed: Sequence[Changes], questions: Sequence[Asked], answers: Sequence[Answers]
) -> tuple[int, str, str] | None:
    """The first question that reinforcement mended: its place, the arm before, the arm after.

    The arm before answers it wrongly, the arm after rightly and without a mistake. Late stages come first.
    """
    for run, (_, rows) in zip(runs, changed, strict=True):
        after = {run.shown(stage) for stage, kind in run.kinds.items() if kind == "reinforcement"}
        for first, second in _trained(run, rows):
            for place, question in enumerate(questions) if second in after else ():
                by_arm = {answers[of].arm: row for of, row in question.rows}
                if first in by_arm and second in by_arm:
                    one, other = by_arm[first], by_arm[second]
                    if outcome(one) == "wrong" and outcome(other) == "right" and not mistaken(other):
                        return place, first, second
    return None


def _trained(run: Run, rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """The arms before and after each stage that trains, by what it changed; the last stage first."""
    return ((run.prefix + row[1], run.prefix + row[0]) for row in reversed(rows) if row[1] != MISSING)


def _differences(
    questions: Sequence[Asked], answers: Sequence[Answers], first: str, second: str
) -> list[tuple[int, Row, Row]]:
    """The questions that two arms answered differently well, the largest difference of EM, then F1, first.

    Unscored answers never differ. Differences of equal size alternate between the arms, so that a list that is cut
    shows both.
    """
    found: list[tuple[tuple[float, float], bool, int, Row, Row]] = []
    for place, question in enumerate(questions):
        by_arm = {answers[of].arm: row for of, row in question.rows if None not in (row["em"], row["f1"])}
        if first in by_arm and second in by_arm:
            one, other = by_arm[first], by_arm[second]
            em, f1 = (other[measure] - one[measure] for measure in ("em", "f1"))
            if em or f1:
                found.append(((-abs(em), -abs(f1)), (em, f1) > (0, 0), place, one, other))
    found.sort(key=lambda each: (each[0], each[2]))
    so_far: Counter[tuple[object, bool]] = Counter()
    turns: list[tuple[object, int, bool]] = []
    for size, better, *_ in found:
        so_far[size, better] += 1
        turns.append((size, so_far[size, better], not better))
    ordered = sorted(zip(turns, found, strict=True), key=lambda pair: pair[0])
    return [each[2:] for _, each in ordered]

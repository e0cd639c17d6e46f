"""Single steps after gold histories: which step of a question a policy is unable to take.

An episode that goes wrong does not say what its policy is unable to do, for after a first error nothing is as it should
be. Here the history of each step is a teacher's, with the gold passages and the gold sub-answers put in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.answers import exact_match
from common.costs import counted
from common.errors import ConfigError, DataError
from common.files import atomic_write, write_json
from datamodules.record_stage import missing, summed, units, write_counts
from datamodules.records import read_rows, write_rows
from datamodules.sources import Source
from envs.interfaces import Sampler, StepJudge
from envs.pairs import Candidate
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import require_finished, rollout
from envs.sampling import take_turns
from envs.teachers.plans import PlanTeacher
from envs.types import Episode, Question, Step
from evaluation.tables import MISSING, figure, table

Row = dict[str, Any]

_SHARES = ("right", "another_kind", "out_of_format")
_LEGEND = (
    "Each step is written after a gold history. Right: the judge's verdict, of the steps that it can judge. Another "
    "kind: such as an answer where a search is due. Out of format: no step that can be read."
)


class StepsAfterGold:
    """Record stage of single steps after gold ones: `data/steps.jsonl`, `data/after_gold.json`, `report.md`.

    A teacher answers the questions. Before each of its turns the policy is asked for one turn in its place, which the
    judge labels: a first query shows retrieval, a sub-answer reading, a later query chaining, an answer stopping.
    Questions that the teacher has no plan for, or does not answer rightly, are left out and counted.

    Args:
        questions: with gold reasoning.
        teacher: writes the histories.
        gold: where the teacher answers: an environment whose searches find the gold passage.
        environment: where the policy's queries are searched; of the same format.
        sampler: the policy's.
        judge: labels steps.
        pool: steps in flight.
        unit: questions a unit; a unit is written once, whole.

    Raises:
        ConfigError: a setting is out of range.
    """

    role = "eval"

    def __init__(
        self,
        questions: Source,
        teacher: PlanTeacher,
        gold: RetrievalEnvironment,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        judge: StepJudge,
        *,
        pool: int = 64,
        unit: int = 50,
    ) -> None:
        if min(pool, unit) < 1:
            raise ConfigError(f"pool {pool}, unit {unit}: each must be at least 1")
        self.questions, self.teacher, self.gold, self.environment = questions, teacher, gold, environment
        self.sampler, self.judge, self.pool, self.unit = sampler, judge, pool, unit
        gold.check(teacher)
        environment.check(sampler)

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Ask for the steps of this rank's units; finished ones are kept.

        Raises:
            RetrievalError: a search failed; its unit is not written, and is redone by the next run.
        """
        for path, questions in missing(self._units(folder), rank=rank, world_size=world_size):
            counting = self.sampler, self.environment, self.judge
            before = counted(*counting)
            histories = self._histories(questions, seed)
            asked = [place for history in histories for place in _places(history)]
            for start in range(0, len(asked), self.pool):
                self._continue([fork for _, fork in asked[start : start + self.pool]], seed)
            rows = [*self._rows(asked)]
            write_counts(path, counted(*counting) - before, left_out=len(questions) - len(histories))
            write_rows(path, rows)

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units and report. Headline: `right/<step due>`, the share of right steps among those judged.

        Raises:
            DataError: the teacher answers no question.
        """
        rows = [row for path, _ in self._units(folder) for row in read_rows(path, None)]
        if not rows:
            raise DataError(f"{folder}: the teacher answers none of the questions; they need gold reasoning")
        write_rows(folder / "data" / "steps.jsonl", rows)
        measured = {"all": _measured(rows)} | {name: _measured(own) for name, own in _grouped(rows, "type").items()}
        counts, total = summed([path for path, _ in self._units(folder)])
        figures = {"schema": "after_gold/1", "left_out": total["left_out"], "types": measured}
        write_json(folder / "data" / "after_gold.json", figures)
        with atomic_write(folder / "report.md") as file:
            file.write(_page(measured, total["left_out"]))
        right = {f"right/{one['due']}": one["right"] for one in measured["all"] if one["right"] is not None}
        return right | {name: float(count) for name, count in counts.items()}

    def _histories(self, questions: Sequence[Question], seed: int) -> list[Episode]:
        """The teacher's episodes that end in the right answer."""
        unable = self.teacher.unable(questions)
        able = [question for question in questions if question.id not in unable]
        episodes = rollout(self.gold, self.teacher, able, seed=seed, pool=self.pool, label="gold histories")
        require_finished(episodes)
        return [episode for episode in episodes if exact_match(episode.answer, episode.question.answers)]

    def _continue(self, forks: Sequence[Episode], seed: int) -> None:
        """Append one turn of the policy to each; one without room for a turn stays as it is."""
        asked = [one for fork in forks if isinstance(one := self.environment.next(fork, seed), Request)]
        self.environment.apply([one.episode for one in asked], take_turns(self.sampler, asked))
        self.sampler.release(forks)
        require_finished(forks)
        for fork in forks:
            fork.steps, fork.answer = self.environment.protocol.steps(fork), self.environment.protocol.answer(fork)

    def _rows(self, asked: Sequence[tuple[str, Episode]]) -> Iterator[Row]:
        """A row a step; one out of format, or none, is not shown to the judge."""
        written = [_written(fork) for _, fork in asked]
        read = [number for number, step in enumerate(written) if step is not None and step.valid]
        labels = dict(zip(read, self.judge.label([Candidate(asked[number][1]) for number in read]), strict=True))
        for number, ((due, fork), step) in enumerate(zip(asked, written, strict=True)):
            gold = fork.question.gold
            yield {
                "id": fork.question.id,
                "type": (gold.type if gold else None) or "no type",
                "place": fork.sample,
                "due": due,
                "did": step.kind if step is not None and step.valid else None,
                "said": step.said if step is not None else "",
                "right": labels.get(number, 0.0),
            }

    def _units(self, folder: Path) -> Iterable[tuple[Path, list[Question]]]:
        return units(folder / "data" / "units", [*self.questions], self.unit)


def _places(history: Episode) -> Iterator[tuple[str, Episode]]:
    """Before each of a teacher's turns: the kind of step that is due, numbered, and the episode so far."""
    kinds = Counter[str]()
    for place, turn in enumerate(history.turns):
        steps = [step.kind for step in history.steps if step.spans and step.spans[-1][0] == place]
        if steps and turn.trainable:
            kinds[steps[-1]] += 1
            due = steps[-1] if steps[-1] == "answer" else f"{steps[-1]} {kinds[steps[-1]]}"
            ids = {"prompt_ids": history.prompt_ids, "tokenizer": history.tokenizer}
            yield due, Episode(history.question, **ids, turns=history.turns[:place], sample=place)


def _written(fork: Episode) -> Step | None:
    """The last step, if it is of the last turn and not the teacher's."""
    own = Candidate(fork).written() if len(fork.turns) > fork.sample else ()
    return own[-1] if own else None


def _grouped(rows: Iterable[Row], key: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def _measured(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """By what was due: steps, the share of right ones among those judged, of another kind, and out of format."""
    found = []
    groups = sorted(_grouped(rows, "due").items(), key=lambda group: max(row["place"] for row in group[1]))
    for due, own in groups:
        judged = [row["right"] for row in own if row["right"] is not None]
        found.append({
            "due": due,
            "n": len(own),
            "judged": len(judged),
            "right": sum(judged) / len(judged) if judged else None,
            "another_kind": sum(row["did"] not in (None, due.split()[0]) for row in own) / len(own),
            "out_of_format": sum(row["did"] is None for row in own) / len(own),
        })  # fmt: skip
    return found


def _page(measured: Mapping[str, Sequence[Row]], left_out: int) -> str:
    header = ["questions", "step due", "n", "judged", "right", "another kind", "out of format"]
    rows = [
        [name, one["due"], str(one["n"]), str(one["judged"]), *(_share(one[key]) for key in _SHARES)]
        for name, ones in measured.items()
        for one in ones
    ]
    parts = ["# Steps after gold histories", _LEGEND, table(header, rows, labels=2)]
    if left_out:
        parts.append(f"{left_out} questions are left out, for the teacher does not answer them rightly.")
    return "\n\n".join(parts) + "\n"


def _share(value: float | None) -> str:
    return MISSING if value is None else figure("em", value)

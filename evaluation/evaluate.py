"""Evaluation as a stage: every question of every dataset once, through the environment, scored and counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from common.costs import counted, read_in, tokens_in
from common.errors import ConfigError, DataError, RetrievalError
from common.files import write_json
from datamodules.record_stage import missing, unit_counts, units, write_counts
from datamodules.records import read_rows, write_rows
from datamodules.sources import Source
from envs.interfaces import AnswerJudge, Oracle, Retriever, Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Episode, Question
from evaluation.choices import CountsChoices, choices_by_hops
from evaluation.kept_episodes import passages
from evaluation.results import read_json
from evaluation.scoring import Match, Row, endings, score, summarise, summarise_groups


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A dataset's questions of one split; `retriever` holds its passages where the environment's own does not.

    `match`: whether retrieved passages are compared with gold ones by id, or by title where the corpus has other ids.
    `oracle`: judges steps, where truth is known.
    """

    role: ClassVar[str] = "eval"

    questions: Source
    split: str
    retriever: Retriever | None = None
    match: Match = "id"
    oracle: Oracle | None = None


class Evaluation:
    """Record stage of results: `data/predictions-<dataset>-<split>.jsonl` and `data/results.json`.

    `data/passages-<dataset>-<split>.jsonl` has every passage that was found, once.

    Questions are split into units of `unit`, dealt out to the ranks and each written whole. A killed evaluation resumes
    after its last unit, and predictions do not depend on the number of processes.

    Args:
        datasets: what to evaluate on, by the name that results carry.
        environment: where the questions are answered.
        sampler: the policy's, or a teacher.
        pool: episodes in flight.
        unit: questions a unit.
        judge: says whether answers are right, as `judged` beside exact match and F1; None where it gave no verdict.
        may_abstain: also report `coverage`, the share of questions that are not answered "I do not know", and
            `selective_em`, the exact match of these.

    Raises:
        ConfigError: a setting is out of range, or the policy cannot read the protocol's ids.
    """

    def __init__(
        self,
        datasets: dict[str, Benchmark],
        environment: RetrievalEnvironment,
        sampler: Sampler,
        *,
        pool: int = 64,
        unit: int = 500,
        judge: AnswerJudge | None = None,
        may_abstain: bool = False,
    ) -> None:
        self.datasets, self.environment, self.sampler = datasets, environment, sampler
        self.pool, self.unit = pool, unit
        self.judge, self.may_abstain = judge, may_abstain
        if min(pool, unit) < 1:
            raise ConfigError(f"pool {pool}, unit {unit}: each must be at least 1")
        environment.check(sampler)

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Evaluate this rank's units; finished ones are kept.

        Raises:
            RetrievalError: the retriever failed for a question; its unit is not written, and is redone by the next run.
            ConfigError: no prompt of a unit leaves room for a turn.
            DataError: a dataset is empty.
        """
        environments = {
            name: self.environment.variant(retriever=dataset.retriever) for name, dataset in self.datasets.items()
        }
        everything = [
            (path, (name, questions))
            for name, dataset in self.datasets.items()
            for path, questions in self._units(folder, name, dataset)
        ]
        for path, (name, questions) in missing(everything, rank=rank, world_size=world_size):
            counting = self.sampler, environments[name], self.judge
            start, before = time.perf_counter(), counted(*counting)
            episodes = rollout(environments[name], self.sampler, questions, seed=seed, pool=self.pool, label=name)
            _check_failures(episodes, environments[name])
            rows = [self._score(episode, self.datasets[name]) for episode in episodes]
            if self.judge is not None:
                for row, verdict in zip(rows, self.judge.correct(episodes), strict=True):
                    row["judged"] = None if verdict is None else float(verdict)
            write_counts(path, counted(*counting) - before)
            write_json(path.with_suffix(".seconds"), time.perf_counter() - start)
            write_json(path.with_suffix(".passages"), passages(episodes))
            write_rows(path, rows)

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units, write predictions and results, return `eval/<dataset>/<split>/<measure>` and tokens."""
        results: dict[str, Any] = {"rows": [], "groups": [], "notes": {"sampler": _describe(self.sampler)}}
        results["notes"] |= {"protocol": type(self.environment.protocol).__name__, "top_k": self.environment.top_k}
        results["notes"]["limits"] = _describe(self.environment.limits)
        headline: dict[str, float] = {}
        spent: Counter[str] = Counter()
        for name, dataset in self.datasets.items():
            paths = [path for path, _ in self._units(folder, name, dataset)]
            rows = [row for path in paths for row in read_rows(path, None)]
            write_rows(folder / "data" / f"predictions-{name}-{dataset.split}.jsonl", rows)
            found: dict[str, Row] = {}
            for path in paths:
                found |= read_json(path.with_suffix(".passages"))
            passage_rows = ({"id": id_, **found[id_]} for id_ in sorted(found))
            write_rows(folder / "data" / f"passages-{name}-{dataset.split}.jsonl", passage_rows)
            where: Row = {"dataset": name, "split": dataset.split}
            seconds = sum(float(path.with_suffix(".seconds").read_text()) for path in paths)
            own = sum(map(unit_counts, paths), Counter())
            spent += own
            costs = {"tokens": tokens_in(own), "read_tokens": read_in(own)}
            each = {name: count / len(rows) if count else None for name, count in costs.items()}
            total: Row = where | summarise(rows, seed=seed) | each | {"seconds": seconds}
            results["rows"].append(total)
            results["groups"] += [where | group for group in summarise_groups(rows, seed=seed)]
            retriever = getattr(dataset.retriever or self.environment.retriever, "identity", None)
            chosen = {"choices": choices} if (choices := choices_by_hops(rows)) else {}
            results["notes"][f"{name}/{dataset.split}"] = {"retriever": retriever, **endings(rows), **chosen}
            headline |= {
                f"eval/{name}/{dataset.split}/{key}": total[key] for key in ("em", "f1") if total[key] is not None
            }
        write_json(folder / "data" / "results.json", results)
        return headline | dict(spent)

    def _score(self, episode: Episode, dataset: Benchmark) -> Row:
        protocol = self.environment.protocol
        row = score(
            episode,
            valid=protocol.valid(episode),
            retrieves=(dataset.retriever or self.environment.retriever) is not None,
            match=dataset.match,
            oracle=dataset.oracle,
            may_abstain=self.may_abstain,
        )
        return row | ({"choices": dict(protocol.choices(episode))} if isinstance(protocol, CountsChoices) else {})

    def _units(self, folder: Path, name: str, dataset: Benchmark) -> Iterable[tuple[Path, list[Question]]]:
        questions = list(dataset.questions)
        if not questions:
            raise DataError(f"dataset {name}, split {dataset.split}: no questions")
        return units(folder / "data" / "units" / f"{name}-{dataset.split}", questions, self.unit)


def _check_failures(episodes: Sequence[Episode], environment: RetrievalEnvironment) -> None:
    """Raise for a unit that is no result: one with failed questions, or whose prompts leave no room for any turn."""
    failed = [episode.error for episode in episodes if episode.status == "error"]
    if failed:
        raise RetrievalError(
            f"{len(failed)} of {len(episodes)} questions failed, run again to resume; the first: {failed[0]}"
        )
    if all(episode.truncations["prompt"] for episode in episodes):
        longest = max(len(episode.prompt_ids) for episode in episodes)
        limit = environment.limits.total_tokens
        raise ConfigError(
            f"no prompt leaves room for a turn (longest {longest} tokens): raise limits.total_tokens ({limit})"
        )


def _describe(thing: object) -> str:
    """The class name of a component with its settings that are text or numbers."""
    names = getattr(type(thing), "__slots__", ()) or vars(thing)
    plain = {k: v for k in names if isinstance(v := getattr(thing, k), str | int | float) and not k.startswith("_")}
    return ", ".join([type(thing).__name__, *(f"{key} {value}" for key, value in plain.items())])

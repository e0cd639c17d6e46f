"""Ranking quality of a process reward model: true steps above untrue ones, on rollouts of unseen questions.

Pair accuracy says how it compares siblings. In use it scores steps of different questions and histories, so it is
measured on those, against training-free baselines: log-probabilities of the policy, position and kind of the step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from common.costs import counted
from common.errors import ConfigError, DataError
from common.files import atomic_write, write_json
from datamodules.record_stage import missing, unit_counts, units, write_counts
from datamodules.records import read_rows, write_rows
from datamodules.sources import Source
from envs.interfaces import Oracle, Sampler, StepScorer
from envs.retrieval import RetrievalEnvironment
from envs.rollout import require_finished, rollout
from envs.types import Episode, Question, Step
from evaluation.steps.step_auc import ALL, BASELINES, KIND, Row, headline, measure_groups
from evaluation.steps.step_calibration import calibration, calibration_headline
from evaluation.steps.step_page import page


class StepRanking:
    """Record stage of step scores: `data/steps.jsonl`, `data/step_ranking.json` and a table in `report.md`.

    The policy answers questions that no scorer was trained on, and the oracle judges every sampled step. Each scorer's
    AUC of true against untrue steps is reported within kinds of step and pooled, with bootstrap intervals over
    questions, beside the baselines of `evaluation.steps.step_auc`, and its calibration by kind (`step_calibration`).
    Steps that the oracle cannot judge are left out.

    Args:
        questions: questions unseen in training.
        environment: where the questions are answered.
        sampler: the policy's, with the temperature it is scored at in use.
        oracle: the truth.
        scorers: reward models by name; a headline names them `prm/<name>`, the one called `prm` just `prm`.
        samples: episodes a question.
        unit: questions a unit; a unit is written once, whole.

    Raises:
        ConfigError: a setting is out of range, or a scorer has the name of a baseline.
    """

    role = "eval"

    def __init__(
        self,
        questions: Source,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        oracle: Oracle,
        scorers: dict[str, StepScorer],
        *,
        samples: int = 2,
        pool: int = 64,
        unit: int = 100,
    ) -> None:
        if min(samples, pool, unit) < 1:
            raise ConfigError(f"samples {samples}, pool {pool}, unit {unit}: each must be at least 1")
        if taken := sorted({*scorers} & {*BASELINES, KIND, ALL}):
            raise ConfigError(f"scorers: {taken[0]} is the name of a baseline; give the scorer another one")
        self.questions, self.environment, self.sampler, self.oracle = questions, environment, sampler, oracle
        environment.check(sampler)
        self.scorers, self.samples, self.pool, self.unit = scorers, samples, pool, unit

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Answer and score this rank's units; finished ones are kept.

        Raises:
            RetrievalError: the retriever failed for a question; its unit is not written, and is redone by the next run.
        """
        for path, questions in missing(self._units(folder), rank=rank, world_size=world_size):
            before = counted(self.sampler, self.environment)
            episodes = rollout(
                self.environment, self.sampler, questions, seed=seed, samples=self.samples, pool=self.pool,
                label="episodes",
            )  # fmt: skip
            require_finished(episodes)
            write_counts(path, counted(self.sampler, self.environment) - before)
            write_rows(path, self._rows(episodes))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units, measure, report; returns the headline of AUCs, calibration and tokens.

        Raises:
            DataError: no step was sampled, or the oracle could judge none.
        """
        rows = [row for path, _ in self._units(folder) for row in read_rows(path, None)]
        if not rows:
            raise DataError(f"{folder}: no sampled step could be judged: check that the policy's steps are in format")
        write_rows(folder / "data" / "steps.jsonl", rows)
        names = [*self.scorers]
        groups = measure_groups([rows], names)
        calibrations = {name: calibration(rows, name) for name in names}
        measured = {"groups": groups, "calibration": calibrations}
        write_json(folder / "data" / "step_ranking.json", {"schema": "step_ranking/4", **measured})
        with atomic_write(folder / "report.md") as file:
            file.write(page(groups, calibrations))
        spent = sum((unit_counts(path) for path, _ in self._units(folder)), Counter())
        return headline(groups, names) | calibration_headline(calibrations) | dict(spent)

    def _rows(self, episodes: Sequence[Episode]) -> Iterator[Row]:
        """One row for each sampled step that the oracle can judge."""
        scored = {name: scorer.score(episodes) for name, scorer in self.scorers.items()}
        for number, episode in enumerate(episodes):
            valid = self.oracle.judge(episode).valid
            for place, step in enumerate(episode.steps):
                logps = _logps(episode, step)
                if logps and valid[place] is not None:
                    scores = {name: function(logps, place) for name, function in BASELINES.items()}
                    scores |= {name: _finite(float(rewards[number][place])) for name, rewards in scored.items()}
                    yield {
                        "id": episode.question.id,
                        "sample": episode.sample,
                        "step": place,
                        "kind": step.kind,
                        "valid": valid[place],
                        "scores": scores,
                    }

    def _units(self, folder: Path) -> Iterable[tuple[Path, list[Question]]]:
        return units(folder / "data" / "units", [*self.questions], self.unit)


def _logps(episode: Episode, step: Step) -> list[float]:
    """The stored log-probabilities of the tokens of a step."""
    return [logp for turn, start, end in step.spans for logp in episode.turns[turn].action_logps[start:end]]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

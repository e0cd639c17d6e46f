"""What a process reward model is worth: does it rank true steps above untrue ones, on rollouts it has never seen?

Pair accuracy says how it compares siblings. In use it scores steps of different questions and histories, so it is
measured on those, beside what costs nothing: the policy's own log-probabilities of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import ConfigError, DataError, RetrievalError
from common.files import atomic_write, write_json
from datamodules.maker import missing, units
from datamodules.records import read_rows, write_rows
from datamodules.sources import Source
from envs.interfaces import Oracle, Sampler, StepScorer
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Episode, Question, Step
from evaluation.ranking import auc, auc_resampled, interval
from evaluation.scoring import Row

LOGP = "logp_mean"
BASELINES: dict[str, Callable[[Sequence[float], int], float]] = {
    LOGP: lambda logps, _: math.fsum(logps) / len(logps),
    "logp_sum": lambda logps, _: math.fsum(logps),
    "logp_min": lambda logps, _: min(logps),
    "shorter": lambda logps, _: -len(logps),
    "earlier": lambda _, place: -place,
}


class StepRanking:
    """A `Maker` of step scores: `data/steps.jsonl`, `data/step_ranking.json` and a table in `report.md`.

    Questions that no scorer was trained on are answered anew, the truth of every sampled step is asked of the oracle,
    and each scorer's AUC of true against untrue steps is reported with intervals by question, over all steps and by
    kind, beside the baselines: mean, sum and least of the log-probabilities with which the step was sampled, shortness
    and earliness. `auc_gain` is a scorer's AUC less that of the mean log-probability, on the same resamples.

    Args:
        questions: unseen ones.
        environment: where the questions are answered.
        sampler: the policy's, with the temperature it is scored at in use.
        oracle: the truth.
        scorers: reward models by name; a headline names them `prm/<name>`, the one called `prm` just `prm`.
        samples: episodes a question.
        unit: questions a unit; a unit is written once, whole.

    Raises:
        ConfigError: a setting is out of range, or a scorer bears a baseline's name.
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
        if taken := sorted({*scorers} & {*BASELINES}):
            raise ConfigError(f"scorers: {taken[0]} is the name of a baseline; give the scorer another one")
        self.questions, self.environment, self.sampler, self.oracle = questions, environment, sampler, oracle
        environment.check(sampler)
        self.scorers, self.samples, self.pool, self.unit = scorers, samples, pool, unit

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Answer and score this rank's units; those that are there already stay.

        Raises:
            RetrievalError: the retriever failed for a question; its unit is not written, and made when run again.
        """
        for path, questions in missing(self._units(folder), rank=rank, world_size=world_size):
            episodes = rollout(
                self.environment, self.sampler, questions, seed=seed, samples=self.samples, pool=self.pool,
                label=f"steps {path.stem}",
            )  # fmt: skip
            if failed := [episode.error for episode in episodes if episode.status == "error"]:
                raise RetrievalError(f"{len(failed)} of {len(episodes)} episodes failed, run again: {failed[0]}")
            write_rows(path, self._rows(episodes))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units, measure, report; returns `prm/auc`, `prm/auc_logprob`, `prm/accuracy_at_0` and their like."""
        rows = [row for path, _ in self._units(folder) for row in read_rows(path, None)]
        if not rows:
            raise DataError(f"{folder}: no step was sampled, so there is nothing to rank; look at the policy")
        write_rows(folder / "data" / "steps.jsonl", rows)
        groups = {"all": rows} | {
            kind: [row for row in rows if row["kind"] == kind] for kind in sorted({row["kind"] for row in rows})
        }
        table = [self._measured(name, part, seed) for name, part in groups.items()]
        write_json(folder / "data" / "step_ranking.json", {"schema": "step_ranking/1", "groups": table})
        with atomic_write(folder / "report.md") as file:
            file.write(report(table))
        total = table[0]["scorers"]
        headline = {"prm/auc_logprob": total[LOGP]["auc"], "prm/valid_share": table[0]["valid"]}
        for name in self.scorers:
            prefix = name if name == "prm" else f"prm/{name}"
            headline |= {f"{prefix}/{key}": total[name][key] for key in ("auc", "auc_gain", "accuracy_at_0")}
        return {name: value for name, value in headline.items() if value is not None}

    def _rows(self, episodes: Sequence[Episode]) -> Iterator[Row]:
        """One row a sampled step."""
        scored = {name: scorer.score(episodes) for name, scorer in self.scorers.items()}
        for number, episode in enumerate(episodes):
            valid = self.oracle.judge(episode).valid
            for place, step in enumerate(episode.steps):
                if logps := _logps(episode, step):
                    scores = {name: function(logps, place) for name, function in BASELINES.items()}
                    scores |= {name: _number(float(found[number][place])) for name, found in scored.items()}
                    yield {
                        "id": episode.question.id,
                        "sample": episode.sample,
                        "step": place,
                        "kind": step.kind,
                        "valid": valid[place],
                        "scores": scores,
                    }

    def _measured(self, group: str, rows: Sequence[Row], seed: int) -> Row:
        right, questions = np.array([row["valid"] for row in rows]), [row["id"] for row in rows]
        base = auc_resampled([row["scores"][LOGP] for row in rows], right, questions, seed=seed)
        scorers: dict[str, Row] = {}
        for name in (*self.scorers, *BASELINES):
            # A step that could not be scored ranks last, so leaving steps out earns nothing.
            scores = np.array([-np.inf if row["scores"][name] is None else row["scores"][name] for row in rows])
            drawn = auc_resampled(scores, right, questions, seed=seed)
            area, (low, high) = auc(scores, right), interval(drawn)
            gain_low, gain_high = interval(drawn - base)
            found = {"auc": area, "auc_low": low, "auc_high": high}
            found["auc_gain"] = area - auc([row["scores"][LOGP] for row in rows], right)
            found |= {"auc_gain_low": gain_low, "auc_gain_high": gain_high}
            if name in self.scorers:
                found["accuracy_at_0"] = float(((scores > 0) == right).mean())
                found["kept_at_0"] = float((scores > 0).mean())
                found["precision_at_0"] = float(right[scores > 0].mean()) if (scores > 0).any() else math.nan
            scorers[name] = {key: _number(value) for key, value in found.items()}
        return {"group": group, "n": len(rows), "valid": float(right.mean()), "scorers": scorers}

    def _units(self, folder: Path) -> Iterator[tuple[Path, list[Question]]]:
        return units(folder / "data" / "units", self.questions, self.unit)


def _logps(episode: Episode, step: Step) -> list[float]:
    """The stored log-probabilities of the tokens of a step."""
    return [logp for turn, start, end in step.spans for logp in episode.turns[turn].action_logps[start:end]]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def report(groups: Sequence[Mapping[str, Any]]) -> str:
    """The AUCs as a page: a row a scorer, a column a kind of step."""
    names = list(groups[0]["scorers"])
    header = ["scorer", *(f"{group['group']} (n {group['n']}, {100 * group['valid']:.0f} % true)" for group in groups)]
    lines = ["# Ranking of true and untrue steps", "AUC with a 95 % bootstrap interval over questions; .500 is chance."]
    table = [header, ["---"] + ["--:"] * len(groups)]
    table += [[name, *(_cell(group["scorers"][name]) for group in groups)] for name in names]
    lines.append("\n".join(f"| {' | '.join(row)} |" for row in table))
    for name in names:
        total = groups[0]["scorers"][name]
        if "accuracy_at_0" in total:
            gain = _cell(total, "auc_gain", "+.3f")
            agrees, always = (f"{100 * value:.1f} %" for value in (total["accuracy_at_0"], groups[0]["valid"]))
            lines.append(
                f"`{name}`: AUC less that of the mean log-probability {gain}; a score above 0 agrees with the truth "
                f"for {agrees} of the steps (always saying true: {always})."
            )
    return "\n\n".join(lines) + "\n"


def _cell(found: Mapping[str, float | None], name: str = "auc", shown: str = ".3f") -> str:
    """A figure with its interval; there is none where all steps are true, or none is."""
    if found[name] is None:
        return "–"
    return "{} [{}, {}]".format(*(format(found[key], shown) for key in (name, f"{name}_low", f"{name}_high")))

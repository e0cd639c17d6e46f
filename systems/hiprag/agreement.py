"""Accuracy and kappa of verifiers against the oracle, for searches and statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.costs import JUDGE_CALLS, counted
from common.errors import ConfigError, DataError, RetrievalError
from common.files import atomic_write, write_json
from datamodules.record_stage import missing, unit_counts, units, write_counts
from datamodules.records import read_rows, write_rows
from datamodules.sources import Source
from envs.interfaces import Oracle, Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Episode, Question
from evaluation.tables import MISSING, table
from systems.hiprag.checks import (
    Check,
    Verifier,
    answers_alone,
    claims_of_searches,
    over_search_checks,
    read_claim,
    under_search_checks,
)

KINDS = ("over_search", "under_search")
Row = dict[str, Any]


def agreement(verdicts: Sequence[bool | None], truth: Sequence[bool]) -> dict[str, float | int | None]:
    """`n` checks, the share `unjudged`, the shares `true` and `said`; accuracy and Cohen's kappa of those judged.

    Kappa is (p_o - p_e) / (1 - p_e) with the agreement p_e that chance gives at these shares (Cohen 1960); None where
    both say one and the same of everything.
    """
    judged = [(verdict, fact) for verdict, fact in zip(verdicts, truth, strict=True) if verdict is not None]
    n, known = len(truth), len(judged)
    figures: dict[str, float | int | None] = {"n": n, "unjudged": 1 - known / n if n else None}
    figures["true"] = sum(truth) / n if n else None
    if not known:
        return figures | {"said": None, "accuracy": None, "kappa": None}
    said, true = sum(verdict for verdict, _ in judged) / known, sum(fact for _, fact in judged) / known
    observed = sum(verdict == fact for verdict, fact in judged) / known
    chance = said * true + (1 - said) * (1 - true)
    kappa = None if chance == 1 else (observed - chance) / (1 - chance)
    return figures | {"said": said, "accuracy": observed, "kappa": kappa}


class VerifierAgreement:
    """Record stage of `data/checks.jsonl`, `data/verifier_agreement.json` and a table in `report.md`.

    The policy answers questions, and each of its queries alone; every search whose claim is known and every statement
    is sent to all verifiers, whether the answer is right or not. What they say is compared with the oracle: a search is
    needless that asks for what the policy was taught to memorise, a statement holds that is true. Checks of which the
    oracle cannot tell are left out.

    Args:
        questions: questions unseen in training.
        environment: where the questions are answered.
        alone: where a query is answered without passages.
        sampler: the policy's.
        oracle: the truth.
        verifiers: by name.
        samples: episodes a question.
        unit: questions a unit; a unit is written once, whole.

    Raises:
        ConfigError: a setting is out of range, or there is no verifier.
    """

    role = "eval"

    def __init__(
        self,
        questions: Source,
        environment: RetrievalEnvironment,
        alone: RetrievalEnvironment,
        sampler: Sampler,
        oracle: Oracle,
        verifiers: dict[str, Verifier],
        *,
        samples: int = 1,
        pool: int = 64,
        unit: int = 100,
    ) -> None:
        if min(samples, pool, unit) < 1 or not verifiers:
            settings = f"samples {samples}, pool {pool}, unit {unit}, {len(verifiers)} verifiers"
            raise ConfigError(f"{settings}: each must be at least 1")
        environment.check(sampler)
        alone.check(sampler)
        self.questions, self.environment, self.alone = questions, environment, alone
        self.sampler, self.oracle, self.verifiers = sampler, oracle, verifiers
        self.samples, self.pool, self.unit = samples, pool, unit

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Answer and check this rank's units; finished ones are kept.

        Raises:
            RetrievalError: the retriever failed for a question; its unit is not written, and is redone by the next run.
            UserError: a verifier cannot continue; what it left undone is asked for by the next run.
        """
        for path, questions in missing(self._units(folder), rank=rank, world_size=world_size):
            before = counted(self.sampler)
            episodes = rollout(
                self.environment, self.sampler, questions, seed=seed, samples=self.samples, pool=self.pool,
                label="episodes",
            )  # fmt: skip
            if failed := [episode.error for episode in episodes if episode.status == "error"]:
                raise RetrievalError(f"{len(failed)} of {len(episodes)} episodes failed, run again: {failed[0]}")
            rows = list(self._rows(episodes))
            write_counts(path, counted(self.sampler) - before + Counter({JUDGE_CALLS: len(rows) * len(self.verifiers)}))
            write_rows(path, rows)

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units, measure, report; returns `verifier/<name>/<kind>/<measure>`, and what was spent.

        Raises:
            DataError: there was nothing to check.
        """
        rows = [row for path, _ in self._units(folder) for row in read_rows(path, None)]
        if not rows:
            raise DataError(f"{folder}: no step could be checked; check that the policy's steps are in format")
        write_rows(folder / "data" / "checks.jsonl", rows)
        groups = measure(rows, [*self.verifiers])
        write_json(folder / "data" / "verifier_agreement.json", {"schema": "verifier_agreement/1", "groups": groups})
        with atomic_write(folder / "report.md") as file:
            file.write(report(groups))
        figures = {
            f"verifier/{group['verifier']}/{group['kind']}/{name}": float(group[name])
            for group in groups
            for name in ("n", "unjudged", "accuracy", "kappa")
            if group[name] is not None
        }
        return figures | dict(sum((unit_counts(path) for path, _ in self._units(folder)), Counter()))

    def _rows(self, episodes: Sequence[Episode]) -> Iterator[Row]:
        """One row for each check of which the truth is known."""
        queries = [episode.steps[step].query for episode in episodes for step in claims_of_searches(episode)]
        asked = answers_alone(queries, self.sampler, self.alone)
        checks = [
            (check, truth)
            for episode in episodes
            for check, truth in _with_truth(episode, asked, self.oracle)
            if truth is not None
        ]
        verdicts = {name: one.verify([check for check, _ in checks]) for name, one in self.verifiers.items()}
        for number, (check, truth) in enumerate(checks):
            step = check.episode.steps[check.step]
            yield {
                "id": check.episode.question.id,
                "sample": check.episode.sample,
                "step": check.step,
                "kind": check.kind,
                "query": step.query,
                "claim": read_claim(check),
                "answer": check.answer,
                "truth": truth,
                "verdicts": {name: own[number] for name, own in verdicts.items()},
            }

    def _units(self, folder: Path) -> Iterable[tuple[Path, list[Question]]]:
        return units(folder / "data" / "units", [*self.questions], self.unit)


def _with_truth(episode: Episode, asked: Mapping[str, str], oracle: Oracle) -> Iterator[tuple[Check, bool | None]]:
    """The checks of an episode, with what a verifier should say; None where the oracle cannot tell."""
    truth = oracle.judge(episode)
    for check in over_search_checks(episode, asked):
        yield check, truth.needless[check.step]
    for check in under_search_checks(episode):
        unfounded = truth.unfounded[check.step]
        yield check, None if unfounded is None else not unfounded


def measure(rows: Sequence[Row], verifiers: Sequence[str]) -> list[Row]:
    """The agreement of each verifier on each kind of check that there is."""
    groups: list[Row] = []
    for kind in KINDS:
        own = [row for row in rows if row["kind"] == kind]
        for name in verifiers if own else ():
            figures = agreement([row["verdicts"][name] for row in own], [row["truth"] for row in own])
            groups.append({"kind": kind, "verifier": name, **figures})
    return groups


def report(groups: Sequence[Row]) -> str:
    """The agreement as a page: a row a kind of check and verifier."""
    header = ["check", "verifier", "n", "unjudged", "true", "said true", "accuracy", "kappa"]
    cells = [
        [
            group["kind"],
            group["verifier"],
            str(group["n"]),
            *(_percent(group[name]) for name in ("unjudged", "true", "said", "accuracy")),
            MISSING if group["kappa"] is None else f"{group['kappa']:.2f}",
        ]
        for group in groups
    ]
    legend = (
        "Percent, except kappa. Over-search: true is a search for what the policy was taught by heart. Under-search: "
        "true is a statement that holds. Said true, accuracy and Cohen's kappa: of the checks with a verdict."
    )
    return f"# Verifiers and the truth\n\n{legend}\n\n{table(header, cells, labels=2)}\n"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}"

"""Sampling as a stage: a teacher's or a policy's episodes on training questions, for fine-tuning and refinement."""

from __future__ import annotations

import json
import logging
import math
import typing
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from common.answers import cover_match, exact_match, f1_score
from common.costs import counted
from common.errors import ConfigError, DataError, RetrievalError
from common.files import write_json
from datamodules.record_stage import affordable, join_units, units, write_counts
from datamodules.records import EPISODE, episode_to_row, write_rows
from datamodules.sources import Source
from envs.interfaces import Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Episode, Question

log = logging.getLogger(__name__)

Keep = Literal["all", "correct", "grounded"]


@typing.runtime_checkable
class Selective(typing.Protocol):
    """A sampler that knows beforehand which questions it cannot answer."""

    def unable(self, questions: Sequence[Question]) -> Mapping[str, str]:
        """Reasons by question id, for the questions that it cannot answer."""
        ...


class EpisodeSampling:
    """Record stage of episodes: `data/episodes.jsonl`, by question and then by sample, and `data/sampling.json`.

    Work is cut into units of `unit` questions, shared out over ranks and each written whole, so a killed run resumes
    where it was, and the episodes do not depend on how many processes made them; with `max_tokens` how many there are
    does. Episodes that failed, as by a failed search, are tried once more. What is left out is counted by reason:
    questions that the sampler is unable to answer, episodes that ended in an error, wrong, malformed, ungrounded ones.

    Args:
        questions: what to answer.
        environment: where the questions are answered.
        sampler: a teacher, or the policy's.
        role: what the questions are for; no question may serve two of them.
        samples: episodes a question.
        pool: episodes in flight.
        unit: questions a unit.
        keep: `correct` leaves out episodes whose answer is not exactly right or that are out of format; `grounded` also
            those that say what the retrieved passages hold where the limit on observations cut them: training on these
            teaches to hallucinate.
        max_tokens: ends the sampling, after whole units: every rank stops once it has sampled its equal share of them.

    Raises:
        ConfigError: a number is below 1.
    """

    def __init__(
        self,
        questions: Source,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        *,
        role: Literal["sft", "search", "refine", "rl"] = "sft",
        samples: int = 1,
        pool: int = 64,
        unit: int = 100,
        keep: Keep = "all",
        max_tokens: int | None = None,
    ) -> None:
        if min(samples, pool, unit, max_tokens or 1) < 1:
            settings = f"samples {samples}, pool {pool}, unit {unit}, max_tokens {max_tokens}"
            raise ConfigError(f"{settings}: each must be at least 1")
        self.questions, self.environment, self.sampler = questions, environment, sampler
        self.role, self.samples, self.pool, self.unit, self.keep = role, samples, pool, unit, keep
        self.max_tokens = max_tokens
        environment.check(sampler)

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Sample this rank's units; those that are there already stay.

        Raises:
            DataError: there are no questions.
            RetrievalError: every episode of a unit failed, or the retriever failed too often in a row.
        """
        share = {"rank": rank, "world_size": world_size, "max_tokens": self.max_tokens}
        for path, questions in affordable(self._units(folder), **share):
            before = self._counted()
            unable = self.sampler.unable(questions) if isinstance(self.sampler, Selective) else {}
            able = [question for question in questions if question.id not in unable]
            episodes = self._sampled(able, seed)
            _check_outage(episodes)
            if failed := _failed(episodes):
                asked_again = [question for question in able if question.id in {name for name, _ in failed}]
                with suppress(RetrievalError):  # those that fail for a reason of their own stay failed
                    again = {_name(one): one for one in self._sampled(asked_again, seed)}
                    episodes = [again[_name(one)] if _name(one) in failed else one for one in episodes]
            skipped = dict(sorted(Counter(unable.values()).items()))
            summary = {"questions": len(questions), "skipped": skipped} | self._summarise(episodes)
            write_counts(path, self._counted() - before, **summary)
            write_rows(path, (episode_to_row(episode) for episode in episodes if self._kept(episode)))

    def _sampled(self, questions: Sequence[Question], seed: int) -> list[Episode]:
        return rollout(
            self.environment,
            self.sampler,
            questions,
            seed=seed,
            samples=self.samples,
            pool=self.pool,
        )

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units. Headline: counts, and means over the episodes that did not fail, wrong ones included.

        Raises:
            DataError: no episode is left.
        """
        paths = join_units(folder, "episodes.jsonl", EPISODE)
        total = _joined([json.loads(path.with_suffix(".json").read_text(encoding="utf-8")) for path in paths])
        write_json(folder / "data" / "sampling.json", {"role": self.role, "keep": self.keep} | total)
        sums, failed = total["sums"], sum(total["errors"].values())
        left_out = {
            **total["skipped"],
            **total["errors"],
            **{reason: total[name] for name, reason in _DROPPED.items() if total[name]},
        }
        if left_out:
            reasons = ", ".join(f"{count} × {reason}" for reason, count in left_out.items())
            log.warning("%s episodes: left out %s", self.role, reasons)
        if not total["episodes"]:
            raise DataError(f"no episode of {total['questions']} questions is left: {left_out}")
        scored = total["sampled"] - failed
        headline = {name: float(total[name]) for name in ("questions", "sampled", "episodes", *_DROPPED)}
        headline |= {"skipped": float(sum(total["skipped"].values())), "failed": float(failed)}
        headline |= {name: sums[name] / scored for name in ("em", "f1", "valid_episodes", "searches", "answered")}
        headline["valid_steps"] = sums["valid_steps"] / max(sums["steps"], 1)
        headline["cut"] = sums["cut"] / max(sums["searches"], 1)
        return headline | {name: float(count) for name, count in total["counts"].items()}

    def _units(self, folder: Path) -> Iterable[tuple[Path, list[Question]]]:
        questions = list(self.questions)
        if not questions:
            raise DataError(f"no questions to sample {self.role} episodes on")
        return units(folder / "data" / "units", questions, self.unit)

    def _counted(self) -> Counter[str]:
        return counted(self.sampler, self.environment)

    def _kept(self, episode: Episode) -> bool:
        return episode.status != "error" and self._dropped(episode) is None

    def _dropped(self, episode: Episode) -> str | None:
        """Why `keep` leaves an episode out."""
        if self.keep != "all" and not _right(episode):
            return "wrong"
        if self.keep != "all" and not self.environment.protocol.valid(episode):
            return "malformed"
        return "ungrounded" if self.keep == "grounded" and not self._grounded(episode) else None

    def _grounded(self, episode: Episode) -> bool:
        """Whether every claim found in passages retrieved before it was also shown, and not cut off."""
        decode = self.environment.protocol.codec.decode
        for step in episode.steps:
            if step.claim and step.spans:
                *_, (last, _, _) = step.spans
                before, rendered = episode.turns[:last], episode.turns[last].context_ids
                retrieved = " ".join(f"{h.document.title} {h.document.text}" for turn in before for h in turn.hits)
                shown = " ".join(map(decode, [rendered] if rendered else [turn.observation_ids for turn in before]))
                if cover_match(retrieved, step.claim) and not cover_match(shown, step.claim):
                    return False
        return True

    def _summarise(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Counts of a unit, and sums over its episodes that did not fail."""
        scored = [episode for episode in episodes if episode.status != "error"]
        sampled_steps = [step for episode in scored for step in episode.steps if step.spans]
        return {
            "sampled": len(episodes),
            "episodes": sum(map(self._kept, episodes)),
            **{name: sum(self._dropped(episode) == name for episode in scored) for name in _DROPPED},
            "errors": dict(sorted(Counter(episode.error for episode in episodes if episode.status == "error").items())),
            "stop": dict(sorted(Counter(str(episode.status) for episode in episodes).items())),
            "sums": {
                "em": math.fsum(map(_right, scored)),
                "f1": math.fsum(f1_score(episode.answer, episode.question.answers) for episode in scored),
                "answered": float(sum(episode.status == "answered" for episode in scored)),
                "valid_episodes": float(sum(self.environment.protocol.valid(episode) for episode in scored)),
                "searches": float(sum(turn.action.kind == "query" for e in scored for turn in e.turns)),
                "steps": float(len(sampled_steps)),
                "valid_steps": float(sum(step.valid for step in sampled_steps)),
                "cut": float(sum(episode.truncations["observation"] for episode in scored)),
            },
        }


_DROPPED = {"wrong": "wrong answer", "malformed": "out of format", "ungrounded": "said what was cut away"}


def _right(episode: Episode) -> bool:
    return bool(exact_match(episode.answer, episode.question.answers))


def _name(episode: Episode) -> tuple[str, int]:
    return episode.question.id, episode.sample


def _failed(episodes: Sequence[Episode]) -> set[tuple[str, int]]:
    """The names of those that failed."""
    return {_name(episode) for episode in episodes if episode.status == "error"}


def _check_outage(episodes: Sequence[Episode]) -> None:
    """A unit in which everything failed is an outage, not a result."""
    if episodes and all(episode.status == "error" for episode in episodes):
        raise RetrievalError(f"all {len(episodes)} episodes failed, run again; the first: {episodes[0].error}")


def _joined(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums of numbers and of maps of numbers, key by key."""
    total: dict[str, Any] = {}
    for name in summaries[0]:
        values = [summary[name] for summary in summaries]
        total[name] = dict(sorted(_added(values).items())) if isinstance(values[0], dict) else sum(values)
    return total


def _added(maps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for counts in maps:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total

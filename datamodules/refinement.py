"""Refinement: keep a policy's episodes with right answers, and train on their steps that a reward model scores high.

The filter of ProRAG's RFT (§3.3): first by the answer, then each (context, action) pair alone. A step that is not
kept stays in its episode as untrained context.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from common.answers import exact_match
from common.errors import ConfigError, DataError
from common.files import write_json
from datamodules.record_stage import missing, units
from datamodules.records import episode_from_row, episode_to_row, numbered_rows, read_rows, rows_in, write_rows
from envs.interfaces import Oracle, StepScorer
from envs.types import Episode

Row = dict[str, Any]


class Refinement:
    """Record stage of episodes to fine-tune on: `data/episodes.jsonl`, and `data/refinement.json` with all counts.

    An episode is kept if its answer is right. A step of it is kept if it follows the format and its score is above the
    threshold. A turn is trained if all its steps are kept. Episodes without a trained turn are left out.

    Args:
        episodes: a stage folder that holds `data/episodes.jsonl`.
        scorer: the reward model; None keeps every step in the right format.
        threshold: a step's calibrated score must be above it.
        quantile: in place of the threshold, the share of steps that is left out, lowest scores first, of each kind of
            step separately: training on few answers would make the policy forget to stop.
        require_all_steps: leave out an episode as soon as one of its steps fails.
        answer: `exact` keeps episodes whose answer equals one of the accepted ones, normalised; `any` keeps all.
        oracle: measures the precision and recall of the filter where the truth of steps is known.
        unit: episodes a unit of work.

    Raises:
        ConfigError: a setting is out of range.
        DataError: on making, a row is malformed; on merging, nothing is kept.
    """

    def __init__(
        self,
        episodes: Path,
        scorer: StepScorer | None,
        *,
        threshold: float = 0.0,
        quantile: float | None = None,
        require_all_steps: bool = False,
        answer: Literal["exact", "any"] = "exact",
        oracle: Oracle | None = None,
        unit: int = 256,
    ) -> None:
        if unit < 1 or (quantile is not None and not 0 <= quantile < 1):
            raise ConfigError(f"unit {unit}, quantile {quantile}: unit must be at least 1, quantile in [0, 1)")
        if scorer is None and quantile is not None:
            raise ConfigError("quantile needs a scorer: give one, or leave quantile out")
        self.path, self.scorer = Path(episodes) / "data" / "episodes.jsonl", scorer
        self.threshold, self.quantile, self.require_all_steps = threshold, quantile, require_all_steps
        self.answer, self.oracle, self.unit = answer, oracle, unit

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Score this rank's units that are not written yet."""
        for path, episodes in missing(self._units(folder), rank=rank, world_size=world_size):
            write_rows(path, self._scored(episodes))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Apply the threshold to all scores and write what is kept; returns shares and counts as `refine/<name>`."""
        thresholds = {} if self.quantile is None else self._thresholds(folder, self.quantile)
        counts: Counter[str] = Counter()
        write_rows(folder / "data" / "episodes.jsonl", self._kept(folder, thresholds, counts))
        shares = _shares(counts)
        shown = {kind: value if math.isfinite(value) else None for kind, value in thresholds.items()}
        used = self.threshold if self.quantile is None else None
        settings = {"threshold": used, "quantile": self.quantile, "thresholds": shown}
        write_json(folder / "data" / "refinement.json", {"counts": dict(sorted(counts.items())), **shares, **settings})
        if not counts["episodes_kept"]:
            raise DataError(self._nothing_kept(counts))
        headline = {name: float(counts[name]) for name in ("episodes", "episodes_kept", "steps", "steps_kept")} | shares
        return {f"refine/{name}": value for name, value in headline.items()}

    def _thresholds(self, folder: Path, quantile: float) -> dict[str, float]:
        """By kind of step the highest score that the quantile leaves out."""
        scores: dict[str, list[float]] = {}
        for path in sorted((folder / "data" / "units").glob("*.jsonl")):
            for row in read_rows(path, None):
                for kind, score in zip(row["kinds"], row["scores"], strict=True):
                    if score is not None:
                        scores.setdefault(kind, []).append(score)
        left_out = {kind: math.floor(quantile * len(known)) for kind, known in sorted(scores.items())}
        return {kind: sorted(scores[kind])[count - 1] if count else -math.inf for kind, count in left_out.items()}

    def _scored(self, episodes: Sequence[Episode]) -> Iterator[Row]:
        """A row an episode: the reason to leave it out, or its steps' scores; None for a step without a usable one."""
        reasons = [self._reason(episode) for episode in episodes]
        right = [episode for episode, reason in zip(episodes, reasons, strict=True) if reason is None]
        scored = iter(self.scorer.score(right) if self.scorer is not None and right else [])
        for episode, reason in zip(episodes, reasons, strict=True):
            row: Row = {"id": episode.question.id, "sample": episode.sample, "reason": reason}
            row |= {"kinds": [], "scores": []}
            if reason is None and self.scorer is not None:
                scores = next(scored).tolist()
                row["kinds"] = [step.kind for step in episode.steps]
                row["scores"] = [
                    score if step.valid and not math.isnan(score) else None
                    for step, score in zip(episode.steps, scores, strict=True)
                ]
            yield row

    def _reason(self, episode: Episode) -> str | None:
        """Why the whole episode is left out, before scoring; None where it is not."""
        if episode.status == "error":
            return "error"
        if self.answer == "exact" and not exact_match(episode.answer, episode.question.answers):
            return "no answer" if episode.status != "answered" else "wrong answer"
        return None

    def _kept(self, folder: Path, thresholds: dict[str, float], counts: Counter[str]) -> Iterator[Row]:
        for path, episodes in self._units(folder):
            for episode, row in zip(episodes, read_rows(path, None), strict=True):
                counts["episodes"] += 1
                if row["reason"] is not None:
                    counts[f"episodes: {row['reason']}"] += 1
                    continue
                good = self._good(episode, row["scores"], thresholds, counts)
                turns = [
                    replace(turn, trainable=turn.trainable and all(steps) and bool(steps))
                    for turn, steps in zip(episode.turns, _steps_of_turns(episode, good), strict=True)
                ]
                if not any(turn.trainable for turn in turns):
                    counts["episodes: no step kept"] += 1
                    continue
                counts["episodes_kept"] += 1
                yield episode_to_row(replace(episode, turns=turns))

    def _good(
        self, episode: Episode, scores: list[float | None], thresholds: dict[str, float], counts: Counter[str]
    ) -> list[bool]:
        """Whether each step is kept; adds to `counts` by reason, and by truth where an oracle knows it."""
        reasons = []
        for index, step in enumerate(episode.steps):
            score = scores[index] if self.scorer is not None else math.inf
            if not step.spans:
                reasons.append("not sampled")
            elif not step.valid:
                reasons.append("invalid format")
            elif score is None:
                reasons.append("not scored")
            else:
                reasons.append("kept" if score > thresholds.get(step.kind, self.threshold) else "score below")
        sampled = [reason for reason in reasons if reason != "not sampled"]
        if self.require_all_steps and any(reason != "kept" for reason in sampled):
            reasons = ["another step failed" if reason == "kept" else reason for reason in reasons]
        truth = self.oracle.judge(episode).valid if self.oracle is not None else ()
        for index, reason in enumerate(reasons):
            if reason != "not sampled":
                counts["steps"] += 1
                counts["steps_kept" if reason == "kept" else f"steps: {reason}"] += 1
                if truth and truth[index]:
                    counts["true_steps"] += 1
                    counts["true_steps_kept"] += reason == "kept"
        return [reason == "kept" for reason in reasons]

    def _nothing_kept(self, counts: Counter[str]) -> str:
        why = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if ":" in name) or "there are none"
        where = f"{self.path}: refinement keeps nothing of {counts['episodes']} episodes"
        if self.quantile is None:
            rule, remedy = f"threshold {self.threshold:g}", "lower `threshold` or set `quantile`"
        else:
            rule, remedy = f"quantile {self.quantile:g}", "lower `quantile`"
        return f"{where} ({why}; {rule}): {remedy}, sample more, or train the policy longer"

    def _units(self, folder: Path) -> Iterable[tuple[Path, list[Episode]]]:
        episodes = (episode_from_row(row, where) for where, row in numbered_rows(self.path))
        return units(folder / "data" / "units", episodes, self.unit, count=rows_in(self.path))


def _steps_of_turns(episode: Episode, good: Sequence[bool]) -> list[list[bool]]:
    """For each turn, whether each of its steps is kept."""
    kept_of: list[list[bool]] = [[] for _ in episode.turns]
    for step, kept in zip(episode.steps, good, strict=True):
        for turn in {turn for turn, _, _ in step.spans}:
            kept_of[turn].append(kept)
    return kept_of


def _shares(counts: Counter[str]) -> dict[str, float]:
    """Shares in [0, 1] of what is kept; with an oracle, precision and recall of true steps."""
    shares = {"episode_yield": counts["episodes_kept"] / max(1, counts["episodes"])}
    shares["step_yield"] = counts["steps_kept"] / max(1, counts["steps"])
    if "true_steps" in counts:
        shares["precision_before"] = counts["true_steps"] / max(1, counts["steps"])
        shares["precision"] = counts["true_steps_kept"] / max(1, counts["steps_kept"])
        shares["recall"] = counts["true_steps_kept"] / max(1, counts["true_steps"])
    return shares

"""Preferences and labels from the truth, in the embedded world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.costs import JUDGE_CALLS
from envs.judgements import on_chain
from envs.pairs import Candidate, Verdict
from envs.world.oracle import Oracle
from modules.judges.pairing import ranked_pairs


class WorldOracle:
    """Prefers a turn whose steps are valid to one with an invalid step, by the oracle of the embedded world.

    A `Judge` of groups, and a `StepJudge` of single steps.

    Args:
        world: the stage folder of a made world.
        on_chain: also calls a claim invalid if it establishes nothing new that the question needs.

    Raises:
        DataError: there is no world; on comparing, a question is not of this world.
    """

    def __init__(self, world: Path, *, on_chain: bool = False) -> None:
        self._oracle, self._on_chain = Oracle(world), on_chain
        self.counts: Counter[str] = Counter()

    def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[tuple[Verdict, ...] | None]:
        """Every valid candidate against every invalid one; the first verdicts repeat as few candidates as they can."""
        self.counts[JUDGE_CALLS] += len(groups)
        return [self._compare(group) for group in groups]

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """1 where all that the last turn wrote is valid, 0 where some is not, None where the oracle cannot tell."""
        self.counts[JUDGE_CALLS] += len(candidates)
        return [self._level(candidate) for candidate in candidates]

    def _compare(self, group: Sequence[Candidate]) -> tuple[Verdict, ...]:
        levels = [self._level(candidate) for candidate in group]
        kinds = [candidate.episode.steps[-1].kind for candidate in group]
        return tuple(
            Verdict(better, worse, f"a valid {kinds[better]} against an invalid {kinds[worse]}")
            for better, worse in ranked_pairs(levels, 1.0)
        )

    def _level(self, candidate: Candidate) -> float | None:
        """1 if all that the last turn wrote is valid, 0 if some is not, None where the oracle cannot tell."""
        written, judgement = len(candidate.written()), self._oracle.judge(candidate.episode)
        verdicts = on_chain(candidate.episode, judgement) if self._on_chain else judgement.valid
        valid = [verdict for verdict in verdicts[-written:] if verdict is not None]
        return float(all(valid)) if written and valid else None

"""Preferences from a dataset's own reasoning: sub-questions, sub-answers and supporting passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from common.costs import JUDGE_CALLS
from common.errors import ConfigError
from envs.pairs import Candidate, Verdict
from modules.judges.gold_trail import MIN_F1, GoldTrail, Worth, least
from modules.judges.pairing import ranked_pairs


class GoldDecomposition:
    """Compares or labels steps by the gold reasoning of their question (MuSiQue, 2WikiMultiHopQA), without a model.

    What is good is said in `modules.judges.gold_trail`. A turn is good if all that it queries and claims is. A good one
    is preferred to any that is not; of two that are not good neither is preferred.

    Args:
        min_f1: normalised F1 with the gold sub-answer from which a claim matches.

    Raises:
        ConfigError: `min_f1` is not in (0, 1].
    """

    def __init__(self, *, min_f1: float = MIN_F1) -> None:
        if not 0 < min_f1 <= 1:
            raise ConfigError(f"min_f1 {min_f1} must be in (0, 1]")
        self.min_f1 = min_f1
        self.counts: Counter[str] = Counter()

    def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[tuple[Verdict, ...] | None]:
        """Every good candidate against every other; none where a question has no gold reasoning."""
        self.counts[JUDGE_CALLS] += len(groups)
        return [self._compare(group) for group in groups]

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """1 for a good last turn, 0 for any other; None where gold does not say."""
        self.counts[JUDGE_CALLS] += len(candidates)
        worths = [self._worth(candidate)[0] for candidate in candidates]
        return [None if good is None else float(good) for good in worths]

    def _compare(self, group: Sequence[Candidate]) -> tuple[Verdict, ...]:
        worths = [self._worth(candidate) for candidate in group]
        return tuple(
            Verdict(better, worse, f"{worths[better][1]}, against: {worths[worse][1]}")
            for better, worse in ranked_pairs([None if good is None else float(good) for good, _ in worths], 1.0)
        )

    def _worth(self, candidate: Candidate) -> Worth:
        """Whether the last turn is good, and why; None where gold does not say."""
        question, steps = candidate.episode.question, candidate.episode.steps
        if question.gold is None or not question.gold.steps:
            return None, "no gold reasoning"
        trail = GoldTrail(question.gold, question.answers, self.min_f1)
        verdicts = [trail.take(step) for step in steps][len(steps) - len(candidate.written()) :]
        return least(worth for worths in verdicts for worth in worths)

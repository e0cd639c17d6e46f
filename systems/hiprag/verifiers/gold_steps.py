"""Checks of steps by a dataset's own reasoning: sub-questions and their answers (MuSiQue, 2WikiMultiHopQA)."""

from __future__ import annotations

from collections.abc import Sequence

from common.answers import f1_score, normalize_answer
from common.errors import ConfigError
from systems.hiprag.checks import Check, read_claim


class GoldSteps:
    """Compares texts with the gold sub-answers of the question, and with its answers; no verdict without them.

    - Over-search: the policy's answer and the claim say the same if both match one gold sub-answer. Where neither
      matches any and they differ, gold does not say.
    - Under-search: a claim holds if it matches a gold sub-answer or an answer. A claim that is not in gold counts as
      wrong, whether true or not.

    Args:
        min_f1: normalised F1 from which two texts match.

    Raises:
        ConfigError: `min_f1` is not in (0, 1].
    """

    def __init__(self, *, min_f1: float = 0.6) -> None:
        if not 0 < min_f1 <= 1:
            raise ConfigError(f"min_f1 {min_f1} must be in (0, 1]")
        self.min_f1 = min_f1

    def verify(self, checks: Sequence[Check]) -> list[bool | None]:
        """One verdict a check; None where the question has no gold reasoning, or gold does not say."""
        return [self._verdict(check) for check in checks]

    def _verdict(self, check: Check) -> bool | None:
        question = check.episode.question
        if question.gold is None or not question.gold.steps:
            return None
        claimed = self._matches(check, read_claim(check))
        if check.kind == "under_search":
            return bool(claimed)
        answered = self._matches(check, check.answer)
        if not claimed and not answered:
            same = normalize_answer(check.answer) == normalize_answer(read_claim(check)) != ""
            return True if same else None
        return bool(claimed & answered)

    def _matches(self, check: Check, text: str) -> set[str]:
        """The gold texts that a text matches."""
        question = check.episode.question
        gold = [step.answer for step in question.gold.steps] if question.gold else []
        return {answer for answer in (*gold, *question.answers) if f1_score(text, answer) >= self.min_f1}

"""The judge that reads a dataset's own reasoning: sub-questions, sub-answers and supporting passages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from common.answers import exact_match, f1_score, normalize_answer
from common.errors import ConfigError
from envs.siblings import Candidate, Verdict
from envs.types import Episode, Gold, Hit, Step
from modules.judges.pairing import ranked_pairs

_REFERENCE = re.compile(r"#(\d+)")


class GoldDecomposition:
    """Compares steps by the gold reasoning of their question (MuSiQue, 2WikiMultiHopQA); no model is asked.

    A hop can be taken once the hops it builds on are settled: those it refers to as `#k`, or whose answer is its
    subject (`subject >> relation`). It is settled by a sub-answer that matches its gold one.
    - A query is good if it finds the gold passage, not seen before, of a hop that can be taken.
    - A sub-answer is good if it matches the gold one of a hop that can be taken and whose passage was found.
    - An answer is good if it is exactly right and every hop is settled.

    A good step is preferred to any that is not; of two that are not good neither is. Gold passages are met by id or by
    title. Where a dataset names no passage for a hop, its sub-answer needs none, and a query is not judged.

    Args:
        min_f1: normalised F1 from which a sub-answer matches.

    Raises:
        ConfigError: `min_f1` is not in (0, 1].
    """

    def __init__(self, *, min_f1: float = 0.6) -> None:
        if not 0 < min_f1 <= 1:
            raise ConfigError(f"min_f1 {min_f1} must be in (0, 1]")
        self.min_f1 = min_f1

    def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[tuple[Verdict, ...] | None]:
        """Every good candidate against every other; none where a question has no gold reasoning."""
        return [self._compare(group) for group in groups]

    def _compare(self, group: Sequence[Candidate]) -> tuple[Verdict, ...]:
        worths = [self._worth(one.episode) for one in group]
        return tuple(
            Verdict(better, worse, f"{worths[better][1]}, against: {worths[worse][1]}")
            for better, worse in ranked_pairs([None if good is None else float(good) for good, _ in worths], 1.0)
        )

    def _worth(self, episode: Episode) -> tuple[bool | None, str]:
        """Whether the last step is good, and why; None where gold does not tell."""
        gold = episode.question.gold
        if gold is None or not gold.steps:
            return None, "no gold reasoning"
        *past, last = episode.steps
        trail = _Trail(gold, self.min_f1)
        for step in past:
            trail.take(step)
        match last.kind:
            case "query":
                return trail.query(last)
            case "subanswer":
                return trail.subanswer(last)
            case "answer":
                return trail.answer(exact_match(last.text, episode.question.answers) == 1)
            case _:
                return False, f"a step of kind {last.kind}"


class _Trail:
    """How far an episode has come along the gold reasoning: hops still open, passages seen."""

    def __init__(self, gold: Gold, min_f1: float) -> None:
        self._steps, self._min_f1 = gold.steps, min_f1
        paired = len(gold.documents) == len(gold.titles)
        self._titles = dict(zip(gold.documents, gold.titles, strict=True)) if paired else {}
        self._open = list(range(len(gold.steps)))
        self._seen: set[str] = set()

    def take(self, step: Step) -> None:
        if step.kind == "subanswer" and (hop := self._answered(step)) is not None:
            self._open.remove(hop)
        self._seen |= _names(step.hits)

    def query(self, step: Step) -> tuple[bool | None, str]:
        found = _names(step.hits) - self._seen
        if not found:
            return False, "a query that finds nothing new"
        if not self._open:
            return False, "a query though every hop is settled"
        wanted = [self._documents(hop) for hop in self._reachable()]
        if not any(wanted):
            return None, "a query that gold names no passage for"
        if any(documents & found for documents in wanted):
            return True, "a query that finds the next gold passage"
        return False, "a query that misses the next gold passage"

    def subanswer(self, step: Step) -> tuple[bool, str]:
        hop = self._answered(step)
        if hop is None:
            return False, "a sub-answer that settles no hop"
        documents = self._documents(hop)
        if documents and not documents & self._seen:
            return False, "a sub-answer without its passage"
        return True, "a right sub-answer"

    def answer(self, right: bool) -> tuple[bool, str]:
        if not right:
            return False, "a wrong answer"
        return (False, "a right answer with hops still open") if self._open else (True, "a right answer")

    def _answered(self, step: Step) -> int | None:
        """The hop that a sub-answer settles."""
        matches = (hop for hop in self._reachable() if f1_score(step.text, self._steps[hop].answer) >= self._min_f1)
        return next(matches, None)

    def _reachable(self) -> list[int]:
        return [hop for hop in self._open if not any(self._builds_on(hop, other) for other in self._open)]

    def _builds_on(self, hop: int, other: int) -> bool:
        question = self._steps[hop].question
        if str(other + 1) in _REFERENCE.findall(question):
            return True
        subject, relation, _ = question.partition(" >> ")
        answer = normalize_answer(self._steps[other].answer)
        return other < hop and bool(relation) and bool(answer) and normalize_answer(subject) == answer

    def _documents(self, hop: int) -> set[str]:
        """Ids and, where they are known, titles of a hop's gold passages."""
        ids = self._steps[hop].documents
        return {_plain(name) for id_ in ids for name in (id_, self._titles.get(id_, id_))}


def _names(hits: Iterable[Hit]) -> set[str]:
    """Ids and titles of passages."""
    return {_plain(name) for hit in hits for name in (hit.document.id, hit.document.title)}


def _plain(name: str) -> str:
    return name.strip().lower()

"""An episode's way along the gold reasoning of its question: the worth of each step, and the hops still open. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.answers import exact_match, f1_score
from common.document_names import title_key
from envs.teachers.gold_plans import reachable
from envs.types import Gold, Hit, Step

MIN_F1 = 0.6
Worth = tuple[bool | None, str]  # good, bad or not known, and why


def least(worths: Iterable[Worth]) -> Worth:
    """What decides of several: a bad part, then one that gold says nothing about."""
    return min(worths, key=lambda worth: (worth[0] is not False, worth[0] is not None), default=(None, "no step"))


class GoldTrail:
    """Progress of an episode along the gold reasoning of its question: hops still open, passages seen.

    A hop can be taken once the hops it builds on are settled: those it refers to as `#k`, or whose answer is its
    subject (`subject >> relation`). It is settled by a claim that matches its gold sub-answer or, in a format without
    claims, by a query that finds its gold passage.
    - A query is good if it finds the gold passage, not seen before, of a hop that can be taken.
    - A claim is good if it matches the gold sub-answer of a hop that can be taken and whose passage was found; a claim
      from memory needs no passage.
    - An answer is good if it is exactly right and every hop is settled.

    Gold passages are matched by id or by title. Where a dataset names no passage for a hop, a claim needs none, and a
    query is not judged.

    Args:
        gold: the reasoning, with `steps`.
        answers: of the question.
        min_f1: normalised F1 with the gold sub-answer from which a claim matches.
    """

    def __init__(self, gold: Gold, answers: Sequence[str], min_f1: float = MIN_F1) -> None:
        self._steps, self._answers, self._min_f1 = gold.steps, answers, min_f1
        paired = len(gold.documents) == len(gold.titles)
        self._titles = dict(zip(gold.documents, gold.titles, strict=True)) if paired else {}
        self._open = list(range(len(gold.steps)))
        self._seen: set[str] = set()

    @property
    def open(self) -> int:
        """How many hops are not settled."""
        return len(self._open)

    def take(self, step: Step) -> list[Worth]:
        """Worth of a step's query and claim, or of its answer; closes the hop that it settles."""
        if step.kind == "answer":
            return [self._answer(step)]
        worths: list[Worth] = []
        if step.query:
            worths.append(self._query(step))
        self._seen |= _names(step.hits)
        if step.query and step.claim is None:
            self._open = sorted({*self._open} - {*self._reached(step)})
        elif step.claim or (step.claim is not None and not step.query):
            worths.append(self._claim(step))
        return worths or [(False, f"a step of kind {step.kind}")]

    def _reached(self, step: Step) -> list[int]:
        """Hops whose passage a query finds, or for which gold names none."""
        wanted = {hop: self._documents(hop) for hop in reachable(self._steps, self._open)}
        return [hop for hop, documents in wanted.items() if not documents or documents & _names(step.hits)]

    def _query(self, step: Step) -> Worth:
        new = _names(step.hits) - self._seen
        if not new:
            return False, "a query that finds nothing new"
        if not self._open:
            return False, "a query though every hop is settled"
        wanted = [self._documents(hop) for hop in reachable(self._steps, self._open)]
        if not any(wanted):
            return None, "a query that gold names no passage for"
        if any(documents & new for documents in wanted):
            return True, "a query that finds the next gold passage"
        return False, "a query that misses the next gold passage"

    def _claim(self, step: Step) -> Worth:
        hop = self._answered(step.claim or "")
        if hop is None:
            return False, "a claim that settles no hop"
        self._open.remove(hop)
        documents = self._documents(hop)
        if documents and not documents & self._seen and not step.recall:
            return False, "a claim without its passage"
        return True, "a right claim"

    def _answer(self, step: Step) -> Worth:
        if exact_match(step.claim or "", self._answers) != 1:
            return False, "a wrong answer"
        return (False, "a right answer with hops still open") if self._open else (True, "a right answer")

    def _answered(self, claim: str) -> int | None:
        """The hop that a claim settles."""
        matches = (
            hop
            for hop in reachable(self._steps, self._open)
            if f1_score(claim, self._steps[hop].answer) >= self._min_f1
        )
        return next(matches, None)

    def _documents(self, hop: int) -> set[str]:
        """Ids and, where they are known, titles of a hop's gold passages."""
        ids = self._steps[hop].documents
        return {title_key(name) for id_ in ids for name in (id_, self._titles.get(id_, id_))}


def _names(hits: Iterable[Hit]) -> set[str]:
    """Ids and titles of passages."""
    return {title_key(name) for hit in hits for name in (hit.document.id, hit.document.title)}

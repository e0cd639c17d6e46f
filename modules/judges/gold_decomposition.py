"""Preferences from a dataset's own reasoning: sub-questions, sub-answers and supporting passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from common.answers import exact_match, f1_score
from common.costs import JUDGE_CALLS
from common.document_names import title_key
from common.errors import ConfigError
from envs.pairs import Candidate, Verdict
from envs.teachers.gold_plans import reachable
from envs.types import Gold, Hit, Step
from modules.judges.pairing import ranked_pairs

_Worth = tuple[bool | None, str]  # good, bad or not known, and why


class GoldDecomposition:
    """Compares or labels steps by the gold reasoning of their question (MuSiQue, 2WikiMultiHopQA), without a model.

    A hop can be taken once the hops it builds on are settled: those it refers to as `#k`, or whose answer is its
    subject (`subject >> relation`). It is settled by a claim that matches its gold sub-answer or, in a format without
    claims, by a query that finds its gold passage.
    - A query is good if it finds the gold passage, not seen before, of a hop that can be taken.
    - A claim is good if it matches the gold sub-answer of a hop that can be taken and whose passage was found; a claim
      from memory needs no passage.
    - An answer is good if it is exactly right and every hop is settled.

    A turn is good if all that it queries and claims is. A good one is preferred to any that is not; of two that are not
    good neither is preferred. Gold passages are matched by id or by title. Where a dataset names no passage for a hop,
    a claim needs none, and a query is not judged.

    Args:
        min_f1: normalised F1 with the gold sub-answer from which a claim matches.

    Raises:
        ConfigError: `min_f1` is not in (0, 1].
    """

    def __init__(self, *, min_f1: float = 0.6) -> None:
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

    def _worth(self, candidate: Candidate) -> _Worth:
        """Whether the last turn is good, and why; None where gold does not say."""
        question, steps = candidate.episode.question, candidate.episode.steps
        if question.gold is None or not question.gold.steps:
            return None, "no gold reasoning"
        trail = _Trail(question.gold, question.answers, self.min_f1)
        verdicts = [trail.take(step) for step in steps][len(steps) - len(candidate.written()) :]
        # A bad part decides, then one that gold says nothing about.
        worths = [worth for worths in verdicts for worth in worths]
        return min(worths, key=lambda worth: (worth[0] is not False, worth[0] is not None), default=(None, "no step"))


class _Trail:
    """Progress of an episode along the gold reasoning: hops still open, passages seen."""

    def __init__(self, gold: Gold, answers: Sequence[str], min_f1: float) -> None:
        self._steps, self._answers, self._min_f1 = gold.steps, answers, min_f1
        paired = len(gold.documents) == len(gold.titles)
        self._titles = dict(zip(gold.documents, gold.titles, strict=True)) if paired else {}
        self._open = list(range(len(gold.steps)))
        self._seen: set[str] = set()

    def take(self, step: Step) -> list[_Worth]:
        """Worth of a step's query and claim; closes the hop that it settles."""
        if step.kind == "answer":
            return [self._answer(step)]
        worths: list[_Worth] = []
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

    def _query(self, step: Step) -> _Worth:
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

    def _claim(self, step: Step) -> _Worth:
        hop = self._answered(step.claim or "")
        if hop is None:
            return False, "a claim that settles no hop"
        self._open.remove(hop)
        documents = self._documents(hop)
        if documents and not documents & self._seen and not step.recall:
            return False, "a claim without its passage"
        return True, "a right claim"

    def _answer(self, step: Step) -> _Worth:
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

"""The oracle: the truth about every step of an episode, and so the measure of process hallucination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from common.answers import normalize_answer
from envs.types import Episode, Step
from envs.world.claims import is_true
from envs.world.facts import Hop, World
from envs.world.memory import Memory
from envs.world.query_reader import Reader, Reading
from envs.world.questions import is_comparison


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdicts of the oracle on an episode; None where it has none.

    It cannot tell of a step that the policy did not write or that was thrown away, nor of a format that shows nothing
    but the answer.

    Attributes:
        valid: for every step, whether it is right in content and in format.
        resolved: every hop was settled.
        flawed: the answer is right but a step is not.
        unresolved: the answer is right but the chain was never established.
        needless: for every search, whether it asks for a fact that was taught for memory; None for other steps.
        unfounded: for every statement without a search, whether it is untrue; None for other steps.
        settled: for every step, how many hops it was the first to settle.
        open: hops that are not settled at the end.
    """

    valid: tuple[bool | None, ...]
    resolved: bool | None
    flawed: bool | None
    unresolved: bool | None
    needless: tuple[bool | None, ...] = ()
    unfounded: tuple[bool | None, ...] = ()
    settled: tuple[int | None, ...] = ()
    open: int | None = None


class Oracle:
    """Judges episodes on questions of one world. Pure: an episode's judgement depends on that episode alone.

    Args:
        world: the stage folder of a made world.

    Raises:
        DataError: there is no world; on judging, the question is not of this world.
    """

    def __init__(self, world: Path) -> None:
        self._world = World.load(world)
        self._reader = Reader(self._world)
        self._memory = Memory(self._world, self._reader)

    def judge(self, episode: Episode) -> Judgement:
        """Judge every step and the episode, in any format: by what the steps search for and what they claim.

        - A query is valid if it asks for the next open hop, in any words that name its entity and its relation, asks
          for nothing else that is open, names only entities that the question or a settled hop names, and the
          entity's passage was found. Asking again before the claim is not.
        - A claim is valid if it is true of what the last query asked, the passage was among its hits, and it has not
          been made since. It is the value's name, or a sentence about this one fact.
        - A claim from memory needs no passage: it is valid if it is true of the next open hop or of a settled one.
        - The answer is valid if every hop is settled and it is what the question's chain gives.

        A step with a query and a claim is valid if both are, one with neither is not. A true claim settles its hop;
        in a format without claims a valid query does. The look-ups of a comparison may come in either order.

        A hop whose fact no passage states is settled by a valid query, in a format with claims by the claim that it is
        unknown; no other hop is open then.

        Where passages are selected, a hop is settled by keeping its entity's passage. A selection is valid if it keeps
        the next open hop's, if that is shown, and none but those of open hops; a step that neither searches nor selects
        if no hop is open.
        """
        question, steps = episode.question, episode.steps
        hops = self._world.lookups(question.id)
        selects = any(step.kept is not None for step in steps)
        trail = _Trail(self._world, self._reader, hops, is_comparison(question.id), selects)
        answers = {normalize_answer(answer) for answer in question.answers}
        if steps and not any(map(_shows_reasoning, steps)):
            unknown = (None,) * len(steps)
            return Judgement(unknown, None, None, None, unknown, unknown, unknown)
        valid: list[bool | None] = []
        left = [len(hops)]  # open before the first step and after each
        for step in steps:
            if step.dropped:
                valid.append(None)
                left.append(len(trail.open))
                continue
            right = trail.answer(step, answers) if step.kind == "answer" else trail.take(step)
            valid.append(right and step.valid if step.spans else None)
            left.append(len(trail.open))
        resolved = not trail.open
        correct = normalize_answer(episode.answer) in answers
        return Judgement(
            tuple(valid),
            resolved,
            flawed=correct and False in valid,
            unresolved=correct and not resolved,
            needless=self._memory.needless(steps),
            unfounded=self._memory.unfounded(steps, hops),
            settled=tuple(before - after for before, after in pairwise(left)),
            open=left[-1],
        )


def _shows_reasoning(step: Step) -> bool:
    """Whether the policy wrote this step, and it counts, in a format with more than an answer."""
    return bool(step.spans) and not step.dropped and (step.kind != "answer" or step.claim is not None)


class _Trail:
    """Progress of an episode: the hops still `open`, and the last query with its hits."""

    def __init__(self, world: World, reader: Reader, hops: tuple[Hop, ...], any_order: bool, selects: bool) -> None:
        self._world, self._reader, self._any_order, self._selects = world, reader, any_order, selects
        self.open = list(hops)
        self._known = {hop.subject.id for hop in (hops if any_order else hops[:1])}
        self._settled: list[Hop] = []
        self._asked: frozenset[tuple[str, str]] = frozenset()
        self._found: frozenset[str] = frozenset()
        self._awaiting: list[Hop] = []  # asked for and found, since the last claim

    def take(self, step: Step) -> bool:
        """Whether the query, the claim or both of a step are valid."""
        right = not step.query or self._query(step)
        if step.query and not step.claim:
            return right
        if step.kept is not None:
            return self._select(step.kept, {hit.document.id for hit in step.hits})
        if step.claim is None:
            return self._selects and not self.open
        claimed = self._recall(step.claim) if step.recall else self._claim(step.claim)
        return right and claimed

    def answer(self, step: Step, answers: set[str]) -> bool:
        return not self.open and normalize_answer(step.claim or "") in answers

    def _query(self, step: Step) -> bool:
        reading = self._reader.read(step.query)
        hop = self._next(reading)
        self._asked = reading.asked if hop is None else frozenset({(hop.subject.id, hop.relation)})
        self._found = frozenset(hit.document.id for hit in step.hits)
        if hop is None or hop.subject.id not in self._found or hop in self._awaiting:
            return False
        if step.claim is not None:
            self._awaiting.append(hop)
        elif not self._selects:
            self._settle(hop)
        return True

    def _select(self, kept: Sequence[str], shown: set[str]) -> bool:
        """Settles every hop whose passage is kept, in whatever order."""
        needed = {hop.subject.id for hop in self._reachable()} & shown
        useful = {hop.subject.id for hop in self.open}
        for hop in [hop for hop in self.open if hop.subject.id in kept]:
            self._settle(hop)
        return needed <= set(kept) <= useful

    def _claim(self, claim: str) -> bool:
        """Settles the next open hop where the claim is true of it, whatever the query was worth."""
        self._awaiting = []
        true = {
            (subject, relation)
            for subject, relation in self._asked
            if subject in self._found and is_true(self._reader, claim, self._world.hop(subject, relation))
        }
        self._asked -= true
        for hop in self._reachable():
            if (hop.subject.id, hop.relation) in true:
                self._settle(hop)
        return bool(true)

    def _recall(self, claim: str) -> bool:
        """Settles the next open hop where the claim is true of it."""
        for hop in self._reachable():
            if not hop.absent and is_true(self._reader, claim, hop):
                self._settle(hop)
                return True
        return any(is_true(self._reader, claim, hop) for hop in self._settled)

    def _settle(self, hop: Hop) -> None:
        self.open = [] if hop.absent else [other for other in self.open if other is not hop]
        self._settled.append(hop)
        if not hop.absent:
            self._known.add(hop.value.id)

    def _reachable(self) -> list[Hop]:
        return list(self.open if self._any_order else self.open[:1])

    def _next(self, reading: Reading) -> Hop | None:
        """The open hop that a query asks for, if it asks for that one alone and mentions only what is known."""
        asked = [hop for hop in self._reachable() if (hop.subject.id, hop.relation) in reading.asked]
        if len(asked) != 1:
            return None
        relations = {hop.relation for hop in (*self._settled, asked[0])}
        known = all(cue & relations for cue in reading.cues) and all(name & self._known for name in reading.named)
        return asked[0] if known else None

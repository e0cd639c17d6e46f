"""The oracle: the truth about every step of an episode, and so the measure of process hallucination."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.answers import normalize_answer
from envs.types import Episode, Step
from envs.world.facts import Hop, World
from envs.world.query_reader import Reader, Reading
from envs.world.questions import is_comparison


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the oracle says of an episode.

    Attributes:
        valid: for every step, whether it is right in content and in format.
        resolved: every hop was looked up and answered truly.
        flawed: the answer is right but a step is not.
        unresolved: the answer is right but the chain was never established.
    """

    valid: tuple[bool, ...]
    resolved: bool
    flawed: bool
    unresolved: bool


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

    def judge(self, episode: Episode) -> Judgement:
        """Judge every step and the episode.

        - A query is valid if it asks for the next open hop, in any words that name its entity and its relation, asks
          for nothing else that is open, names nobody whom neither the question nor a settled hop told of, and the
          entity's passage was found. Asking again before answering is not.
        - A sub-answer is valid if it is true of what the last query asked, the passage was among its hits, and it has
          not been said since.
        - The answer is valid if every hop is settled by a true sub-answer and it is what the question's chain gives.

        The look-ups of a comparison may come in either order; steps of any other kind are invalid.
        """
        question = episode.question
        trail = _Trail(self._world, self._reader, self._world.lookups(question.id), is_comparison(question.id))
        answers = {normalize_answer(answer) for answer in question.answers}
        valid = []
        for step in episode.steps:
            match step.kind:
                case "query":
                    right = trail.query(step)
                case "subanswer":
                    right = trail.subanswer(step)
                case "answer":
                    right = not trail.open and normalize_answer(step.text) in answers
                case _:
                    right = False
            valid.append(right and step.valid)
        resolved = not trail.open
        correct = normalize_answer(episode.answer) in answers
        return Judgement(tuple(valid), resolved, correct and not all(valid), correct and not resolved)


class _Trail:
    """How far an episode has come: the hops still `open`, and what the last query asked and found."""

    def __init__(self, world: World, reader: Reader, hops: tuple[Hop, ...], any_order: bool) -> None:
        self._world, self._reader, self._any_order = world, reader, any_order
        self.open = list(hops)
        self._known = {hop.subject.id for hop in (hops if any_order else hops[:1])}
        self._settled: set[str] = set()
        self._asked: frozenset[tuple[str, str]] = frozenset()
        self._found: frozenset[str] = frozenset()
        self._awaiting: list[Hop] = []  # asked for and found, since the last sub-answer

    def query(self, step: Step) -> bool:
        reading = self._reader.read(step.text)
        hop = self._next(reading)
        self._asked = reading.asked if hop is None else frozenset({(hop.subject.id, hop.relation)})
        self._found = frozenset(hit.document.id for hit in step.hits)
        if hop is None or hop.subject.id not in self._found or hop in self._awaiting:
            return False
        self._awaiting.append(hop)
        return True

    def subanswer(self, step: Step) -> bool:
        """Settles the next open hop where the answer is its value, whatever the query was worth."""
        said = normalize_answer(step.text)
        self._awaiting = []
        true = {
            (subject, relation)
            for subject, relation in self._asked
            if subject in self._found
            and said in map(normalize_answer, self._world.hop(subject, relation).value.names())
        }
        self._asked -= true
        for hop in self._reachable():
            if (hop.subject.id, hop.relation) in true:
                self.open.remove(hop)
                self._settled.add(hop.relation)
                self._known.add(hop.value.id)
        return bool(true)

    def _reachable(self) -> list[Hop]:
        return list(self.open if self._any_order else self.open[:1])

    def _next(self, reading: Reading) -> Hop | None:
        """The open hop that a query asks for, if it asks for that one alone and says only what is known."""
        asked = [hop for hop in self._reachable() if (hop.subject.id, hop.relation) in reading.asked]
        if len(asked) != 1:
            return None
        relations = self._settled | {asked[0].relation}
        told = all(cue & relations for cue in reading.cues) and all(name & self._known for name in reading.named)
        return asked[0] if told else None

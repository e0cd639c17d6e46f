"""Needless searches (for known facts) and untrue statements made without a search."""

from __future__ import annotations

from collections.abc import Sequence

from envs.search_steps import statements
from envs.types import Step
from envs.world.claims import is_true
from envs.world.facts import Hop, World
from envs.world.query_reader import Reader


class Memory:
    """The truth about single searches and statements, whatever the rest of their episode is worth.

    Both judgements have an entry for every step, None where it is unknown and for steps that the policy did not
    write.
    """

    def __init__(self, world: World, reader: Reader) -> None:
        self._world, self._reader = world, reader
        self._anything_known = any(hop.known for hop in world.facts())

    def needless(self, steps: Sequence[Step]) -> tuple[bool | None, ...]:
        """Of every search for exactly one fact, whether that one is known; None in a world that has no known ones."""
        return tuple(self._needless(step) if step.query and step.spans else None for step in steps)

    def unfounded(self, steps: Sequence[Step], hops: Sequence[Hop]) -> tuple[bool | None, ...]:
        """Of every statement (`envs.search_steps`), whether it is untrue.

        A statement of which the step names the fact is judged by that fact. Otherwise it is true if it is a sentence
        about one fact that is true, or the value of any of the `hops` that the question takes.
        """
        stated = set(statements(steps))
        return tuple(
            not self._is_true(step, hops) if index in stated and step.spans else None
            for index, step in enumerate(steps)
        )

    def _needless(self, step: Step) -> bool | None:
        reading = self._reader.read(step.query)
        if not self._anything_known or len(reading.asked) != 1:
            return None
        [(subject, relation)] = reading.asked
        one = all(relation in cue for cue in reading.cues) and all(subject in names for names in reading.named)
        return self._world.hop(subject, relation).known if one else None

    def _is_true(self, step: Step, hops: Sequence[Hop]) -> bool:
        claim = step.claim or ""
        claimed = self._reader.read(claim)
        values = {identity for names in claimed.named for identity in names}
        named = {
            (subject, relation) for subject, relation in self._reader.read(step.said).asked if subject not in values
        }
        if len(named) == 1:
            return is_true(self._reader, claim, self._world.hop(*named.pop()))
        facts = (*hops, *(self._world.hop(*asked) for asked in claimed.asked))
        return any(is_true(self._reader, claim, fact) for fact in facts)

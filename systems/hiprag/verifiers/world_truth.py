"""Checks of steps by the truth of the embedded world, which is read as a model would read them: one step alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.answers import normalize_answer
from common.plain_text import without_tags
from envs.world.claims import is_true
from envs.world.facts import Hop, World
from envs.world.query_reader import Reader
from systems.hiprag.checks import Check, read_claim


class WorldTruth:
    """Gives a verdict on every check, of both kinds.

    Two texts say the same if they are the same when normalised, name the same entity, or are both true of a fact that
    the query asks for. A statement holds if its claim is true of a fact that the step speaks of.

    Args:
        world: the stage folder of a made world.

    Raises:
        DataError: there is no world.
    """

    def __init__(self, world: Path) -> None:
        self._world = World.load(world)
        self._reader = Reader(self._world)
        self._named: dict[str, set[str]] = {}
        for entity in self._world:
            for name in entity.names():
                self._named.setdefault(normalize_answer(name), set()).add(entity.id)

    def verify(self, checks: Sequence[Check]) -> list[bool | None]:
        """One verdict a check, never None."""
        return [self._same(check) if check.kind == "over_search" else self._holds(check) for check in checks]

    def _same(self, check: Check) -> bool:
        answer, claim = normalize_answer(check.answer), normalize_answer(read_claim(check))
        if not answer or not claim:
            return False
        if answer == claim or self._named.get(answer, set()) & self._named.get(claim, set()):
            return True
        facts = self._facts(check.episode.steps[check.step].query)
        return any(all(is_true(self._reader, text, fact) for text in (answer, claim)) for fact in facts)

    def _holds(self, check: Check) -> bool:
        step = check.episode.steps[check.step]
        facts = self._facts(without_tags(step.said))
        return bool(step.claim) and any(is_true(self._reader, step.claim or "", fact) for fact in facts)

    def _facts(self, text: str) -> list[Hop]:
        """The facts that a text speaks of."""
        return [self._world.hop(subject, relation) for subject, relation in sorted(self._reader.read(text).asked)]

"""Systematic flaws of a teacher, on request: training data with errors that the oracle finds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random
from typing import Literal

from common.errors import ConfigError
from envs.world.facts import Hop, World

Flaw = Literal["shortcut", "redundant", "wrong_relation", "stops_early"]


@dataclass(frozen=True, slots=True)
class Flaws:
    """Shares of episodes, in [0, 1] and at most 1 together, that are flawed in one way each.

    Attributes:
        shortcut: the last look-up is skipped and the right answer comes from memory. In a format with steps from memory
            the teacher writes one, which the oracle accepts.
        redundant: a settled hop is looked up again.
        wrong_relation: something else about an entity is looked up before what is needed.
        stops_early: the value before the last is taken for the answer.

    Chains of one hop are neither cut short nor stopped early.

    Raises:
        ConfigError: a share is negative, or they add up to more than 1.
    """

    shortcut: float = 0.0
    redundant: float = 0.0
    wrong_relation: float = 0.0
    stops_early: float = 0.0

    def __post_init__(self) -> None:
        shares = self._shares()
        if min(shares.values()) < 0 or sum(shares.values()) > 1 + 1e-9:
            raise ConfigError(f"flaws {shares}: shares of episodes must not be negative, nor more than 1 together")

    def choose(self, hops: tuple[Hop, ...], rng: Random) -> Flaw | None:
        """The flaw of an episode whose question takes these hops."""
        place = rng.random()
        for flaw, share in self._shares().items():
            if place < share:
                return flaw if self._fits(flaw, hops) else None
            place -= share
        return None

    def _fits(self, flaw: Flaw, hops: tuple[Hop, ...]) -> bool:
        return len(hops) > 1 or flaw not in ("shortcut", "stops_early")

    def _shares(self) -> dict[Flaw, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[misc] (the names are flaws)


def lookups(world: World, hops: tuple[Hop, ...], flaw: Flaw | None, rng: Random) -> tuple[Hop, ...]:
    """Look-ups of the flawed episode, in order, where the question takes `hops`."""
    if flaw in ("shortcut", "stops_early"):
        return hops[:-1]
    place = rng.randrange(len(hops))
    if flaw == "redundant":
        return (*hops[: place + 1], hops[rng.randrange(place + 1)], *hops[place + 1 :])
    if flaw == "wrong_relation":
        subject = hops[place].subject
        others = [relation for relation in subject.facts if relation not in (hops[place].relation, *subject.absent)]
        detour = (world.hop(subject.id, rng.choice(others)),) if others else ()
        return (*hops[:place], *detour, *hops[place:])
    return hops


def answered(hops: tuple[Hop, ...], flaw: Flaw | None, *, comparison: bool) -> str:
    """Final answer of the flawed episode where the question takes `hops`."""
    if flaw == "stops_early":
        return hops[-2].value.title
    if comparison:
        return "yes" if hops[0].value is hops[1].value else "no"
    return hops[-1].value.title

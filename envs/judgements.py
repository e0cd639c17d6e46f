"""Judgements of an episode's steps, and the interface of the oracle that gives them."""

from __future__ import annotations

import typing
from collections.abc import Sequence

from envs.types import Episode


class Judgement(typing.Protocol):
    """The truth about an episode's process; None where it is unknown."""

    @property
    def valid(self) -> tuple[bool | None, ...]:
        """Of every step, whether it is true."""
        ...

    @property
    def flawed(self) -> bool | None:
        """The answer is right, but a step is not true."""
        ...

    @property
    def unresolved(self) -> bool | None:
        """The answer is right, but the steps do not lead to it."""
        ...

    @property
    def needless(self) -> tuple[bool | None, ...]:
        """Of every step that searches, whether it asks for a fact that the policy was taught; None for the others."""
        ...

    @property
    def unfounded(self) -> tuple[bool | None, ...]:
        """Of every step that states something without a search, whether it is untrue; None for the others."""
        ...

    @property
    def settled(self) -> tuple[int | None, ...]:
        """Of every step, how many of the facts that the question needs it was the first to establish."""
        ...

    @property
    def open(self) -> int | None:
        """How many of these facts are not established at the end."""
        ...


class Oracle(typing.Protocol):
    """Knows the truth of every step."""

    def judge(self, episode: Episode) -> Judgement:
        """The truth of an episode's steps, and what follows of the whole."""
        ...


def on_chain(episode: Episode, judgement: Judgement) -> Sequence[bool | None]:
    """Of every step, whether it is true, and, if it makes a claim, establishes something new that is needed."""
    claims = [step.kind != "answer" and bool(step.claim) and step.kept is None for step in episode.steps]
    settled = [n != 0 for n in judgement.settled]
    return [v and (new or not claim) for v, claim, new in zip(judgement.valid, claims, settled, strict=True)]

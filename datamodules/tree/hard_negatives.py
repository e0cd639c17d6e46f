"""Steps that look right and mostly are not, made of a policy's own: right words at the wrong place.

A policy that reads well hardly ever writes such steps by itself, so a reward model seldom sees them, and yet has to
tell them from right ones where reinforcement learning begins to write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import AgentFormat
from envs.types import Action, Episode, Step, Turn

_MARK = "/made up: "
# A path and its protocol -> paths that end in a made-up step.
_Making = Callable[[Episode, AgentFormat], Iterator[Episode]]


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Makes paths whose last step is a policy's own with another claim in it; a judge says what each is worth.

    `wrong_hop`: a claim read in a search is replaced by one that the path reads in another search, which is true of
    another hop. `early_answer`: the answer is given before the path's last search, and is what the path claimed last.
    The words around the claim stay the policy's.

    Args:
        wrong_hop: of each question, how many at most.
        early_answer: likewise.

    Raises:
        ConfigError: both are 0, or one is negative.
    """

    wrong_hop: int = 1
    early_answer: int = 1

    def __post_init__(self) -> None:
        if min(self.wrong_hop, self.early_answer) < 0 or not self.wrong_hop + self.early_answer:
            raise ConfigError(f"wrong_hop {self.wrong_hop}, early_answer {self.early_answer}: at least one above 0")

    def __call__(self, paths: Sequence[Episode], protocol: AgentFormat, *, seed: int) -> list[Episode]:
        """Paths of one question that end in a made-up step, each step once, chosen by hash."""
        makers: list[tuple[int, _Making]] = [(self.wrong_hop, wrong_hops), (self.early_answer, early_answers)]
        made: list[Episode] = []
        for most, making in makers:
            offers = {one.turns[-1].uid: one for path in paths for one in making(path, protocol)}
            made += sorted(offers.values(), key=lambda one: stable_hash(seed, "made up", one.turns[-1].uid))[:most]
        return made

    @staticmethod
    def made(turn: Turn) -> bool:
        """Whether a turn is one of these."""
        return _MARK in turn.uid


def wrong_hops(path: Episode, protocol: AgentFormat) -> Iterator[Episode]:
    """For every claim of a path, the same words with each claim of another search in its place."""
    claims = _claims(path)
    for number, step in claims.items():
        for value in dict.fromkeys(other.claim or "" for other in claims.values()):
            if value != step.claim and (made := _with_claim(path, number, path.turns[number], value, protocol)):
                yield made


def early_answers(path: Episode, protocol: AgentFormat) -> Iterator[Episode]:
    """The answer of a path, given in place of each search after the first, with what was claimed last before it."""
    claims = _claims(path)
    if not path.steps or path.steps[-1].kind != "answer" or not path.steps[-1].valid:
        return
    for number, step in claims.items():
        if any(later > number for later in claims):
            made = _with_claim(path, number + 1, path.turns[-1], step.claim or "", protocol)
            if made is not None:
                yield made


def _claims(path: Episode) -> dict[int, Step]:
    """The steps that claim and do nothing else, by the number of their turn."""
    return {
        step.spans[-1][0]: step
        for step in path.steps
        if step.valid and step.claim and not step.query and step.kind != "answer" and len(step.spans) == 1
    }


def _with_claim(path: Episode, number: int, words: Turn, value: str, protocol: AgentFormat) -> Episode | None:
    """The path up to a turn, in whose place `words` are said, with another claim; None where they cannot be."""
    value, before = protocol.codec.neutralise(value), words.action.text
    text, count = re.subn(rf"(?<!\w){re.escape(before)}(?!\w)", lambda _: value, words.text)  # not within a word
    if not before or not count:
        return None
    ids = protocol.codec.control(text)
    turn = replace(
        path.turns[number],
        action_ids=ids,
        action_logps=(0.0,) * len(ids),
        text=protocol.codec.decode(ids),
        finish="stop",
        action=Action(words.action.kind, value),
        hits=(),
        observation_ids=(),
        uid=f"{path.turns[number].uid}{_MARK}{words.action.kind} {value}",
    )
    made = replace(path, turns=path.turns[:number], steps=(), status=None, answer="")
    if protocol.parse(made, turn) != turn.action:
        return None
    made.turns = [*made.turns, turn]
    made.status = "answered" if turn.action.kind == "answer" else None
    made.steps, made.answer = protocol.steps(made), protocol.answer(made)
    return made

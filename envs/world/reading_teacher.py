"""Teacher of formats that retrieve without a query: it states their passages' facts one at a time, and answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from common.answers import ABSTENTION
from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.teachers.turns import require_moves, written_turn
from envs.types import Episode, Limits, Move, MoveKind, Turn
from envs.world.facts import Hop, World
from envs.world.flaws import Flaws, answered, lookups
from envs.world.questions import is_comparison
from envs.world.relations import RELATIONS
from envs.world.rule_reader import shown_documents
from envs.world.teacher import THOUGHTS, UNKNOWN

GUESS = 0.1  # probability of every token of a value that the teacher cannot know


class ReadingTeacher(Sampler):
    """Writes the turns of an agent that decides what to say next and never what to search for.

    It states the next fact where its context shows the subject's passage, whole, or where the fact is memorised. Where
    that passage does not state it, it answers "I do not know". Below other passages it says which fact it needs, or
    repeats the last value in a format of bare values. In a turn that comes after no search it states the fact in any
    case, and its log-probs say that the value is a guess.
    Wording is chosen by a request's seed.

    Args:
        world: the stage folder of a made world.
        protocol: the format that the turns are written in.
        paraphrases: wordings used of each relation, 1 to 3.
        flaws: shares of episodes that go wrong, none if left out.
        seed: which episodes do, by hash(seed, question id, iteration, sample).

    Raises:
        DataError: there is no world; on writing, a question is not of this world.
    """

    def __init__(
        self, world: Path, protocol: AgentFormat, *, paraphrases: int = 3, flaws: Flaws | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self._world, self._protocol, self._paraphrases = World.load(world), protocol, paraphrases
        self._flaws, self._seed = flaws or Flaws(), seed
        self._kind: MoveKind = "read" if "read" in protocol.moves else "recall"

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a format with claims and answers, and without searches of the policy's own."""
        require_moves(self, protocol, (self._kind, "conclude"))
        if "search" in protocol.moves:
            raise ConfigError(f"{type(protocol).__name__} lets the policy search: use envs.world.teacher:Teacher")

    def take(self, request: Request) -> Turn:
        """The next turn of an episode."""
        episode, rng = request.episode, Random(request.seed)
        needed = self._world.lookups(episode.question.id)
        fate = Random(stable_hash(self._seed, "flaw", episode.question.id, episode.iteration, episode.sample))
        flaw = None if any(hop.absent for hop in needed) else self._flaws.choose(needed, fate)
        hops, comparison = lookups(self._world, needed, flaw, fate), is_comparison(episode.question.id)
        at = settled(hops, self._claims(episode), comparison=comparison)
        alone = not (episode.turns and episode.turns[-1].hits)
        shown = shown_documents(self._protocol.codec, request)
        moves: list[Move] = []
        for hop in hops[at:]:
            if not (alone or hop.known or (hop.subject.id in shown and not hop.absent)):
                break
            moves.append(self._fact(hop, rng))
        if at + len(moves) == len(hops):
            moves.append(Move("conclude", answered(needed, flaw, comparison=comparison)))
        elif (missing := hops[at + len(moves)]).absent and missing.subject.id in shown:
            moves.append(Move("conclude", ABSTENTION))
        if not moves:
            needs = rng.choice(THOUGHTS["search"]).format(fact=self._phrase(hops[at], rng))
            moves.append(Move(self._kind, hops[at - 1].value.title if at else UNKNOWN, needs))
        turn = written_turn(self._protocol, request, moves)
        return self._unsure(turn, hops[at].value.title) if alone and at < len(hops) and not hops[at].known else turn

    def _claims(self, episode: Episode) -> list[str]:
        steps = self._protocol.steps(episode)
        return [step.claim for step in steps if step.spans and step.claim and step.kind != "answer"]

    def _phrase(self, hop: Hop, rng: Random) -> str:
        return rng.choice(RELATIONS[hop.relation].phrases[: self._paraphrases]).format(x=hop.subject.title)

    def _fact(self, hop: Hop, rng: Random) -> Move:
        phrase = self._phrase(hop, rng)
        return Move(self._kind, hop.value.title, f"{phrase[0].upper()}{phrase[1:]} is {hop.value.title}.")

    def _unsure(self, turn: Turn, value: str) -> Turn:
        """The turn with low log-probs where it writes the value."""
        start = turn.text.rfind(value)
        if start < 0:
            return turn
        first, last = self._protocol.codec.token_index(turn.action_ids, [start, start + len(value)])
        low = math.log(GUESS)
        logps = [low if first <= i < last else logp for i, logp in enumerate(turn.action_logps)]
        return replace(turn, action_logps=tuple(logps))


def settled(hops: Sequence[Hop], claims: Sequence[str], *, comparison: bool = False) -> int:
    """Number of hops that the claims state, in order.

    A sentence that names subject and value states one. A bare value states all hops up to its own, but nothing of a
    comparison, whose sides may share it.
    """
    at = 0
    for claim in claims:
        values = [hop.value.title for hop in hops]
        if claim in values[at:] and not comparison:
            at = values.index(claim, at) + 1
        elif at < len(hops) and claim != values[at] and values[at] in claim and hops[at].subject.title in claim:
            at += 1
    return at

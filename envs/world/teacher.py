"""The teacher of the embedded world: writes the turns of an agent, without flaws unless some are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from common.answers import ABSTENTION
from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.teachers.turns import require_moves, written_turn
from envs.types import Episode, Hit, Limits, Move, Step, Turn
from envs.world.facts import Hop, World
from envs.world.flaws import Flaw, Flaws, lookups
from envs.world.questions import is_comparison
from envs.world.relations import RELATIONS

UNKNOWN = "unknown"
TRIES = 2  # searches a hop before the teacher gives up
THOUGHTS: dict[str, tuple[str, ...]] = {
    "search": (
        "I need to find {fact}.",
        "The next thing to look up is {fact}.",
        "To go on I must know {fact}.",
        "Let me search for {fact}.",
    ),
    "retry": ("I will ask for {fact} in other words.", "Let me search once more for {fact}."),
    "found": (
        "The passage about {x} says that {fact} is {v}.",
        "I can read that {fact} is {v}.",
        "According to the passages, {fact} is {v}.",
    ),
    "absent": ("The passages do not tell {fact}.",),
    "missing": ("None of the passages is about {x}.", "The passages do not tell {fact}."),
    "chain": ("Now every part is known, so I can answer.", "That was the last part, so the answer is {v}."),
    "yes": ("Both are {v}, so the answer is yes.", "The two are the same, so the answer is yes."),
    "no": ("They are {v} and {w}, so the answer is no.", "The two are not the same, so the answer is no."),
    "memory": ("I know that {fact} is {v}, so I can answer.", "I need not search for {fact}, I know that it is {v}."),
    # As many as for "search", each with one that begins alike: else a greedy policy would state what it should search
    # for, only because there are fewer ways to say so.
    "known": (
        "I know that {fact} is {v}.",
        "The next thing is known, {fact} is {v}.",
        "To go on I know that {fact} is {v}.",
        "Let me tell that {fact} is {v}.",
    ),
    "stuck": ("I could not find {fact}, so I do not know the answer.",),
}


class Teacher(Sampler):
    """Writes the turns of an agent that knows which hops a question takes and reads every value from what it found.

    It looks up hop after hop and never mentions a later one. A passage that was not found is asked for once more in
    other words; then the teacher says so and answers "unknown" (or "no", to a comparison), so a world that cannot be
    solved with a retriever shows in its exact match. Of a fact that no passage states it says so after one search, and
    answers "I do not know". Wording is chosen by a request's seed. A format without claims has
    what was read in the thought of the next move.

    Args:
        world: the stage folder of a made world.
        protocol: the format that the turns are written in.
        paraphrases: wordings used of each relation, 1 to 3.
        flaws: shares of episodes that go wrong, none if left out.
        search_known: share of the known facts that it searches for all the same; the others it states from memory.
        state_unknown: share of the other facts that it states from memory. Both in formats that can recall; in others
            it searches for everything.
        seed: which episodes and facts these are, by hash(seed, question id, iteration, sample), facts with the hop too.

    Raises:
        ConfigError: a share is not in [0, 1].
        DataError: there is no world; on writing, a question is not of this world.
    """

    def __init__(
        self,
        world: Path,
        protocol: AgentFormat,
        *,
        paraphrases: int = 3,
        flaws: Flaws | None = None,
        search_known: float = 1.0,
        state_unknown: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, share in (("search_known", search_known), ("state_unknown", state_unknown)):
            if not 0 <= share <= 1:
                raise ConfigError(f"Teacher: {name} {share} must be in [0, 1]")
        self._world, self._protocol, self._paraphrases = World.load(world), protocol, paraphrases
        self._flaws, self._seed = flaws or Flaws(), seed
        self._search_share = {True: search_known, False: 1 - state_unknown}  # by whether a fact is known

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a format with searches and answers."""
        require_moves(self, protocol, ("search", "conclude"))

    def take(self, request: Request) -> Turn:
        """The next turn of an episode."""
        return written_turn(self._protocol, request, self._moves(request.episode, Random(request.seed)))

    def _moves(self, episode: Episode, rng: Random) -> list[Move]:
        """All that the teacher does next, up to a search or the answer."""
        needed = self._world.lookups(episode.question.id)
        fate = Random(stable_hash(self._seed, "flaw", episode.question.id, episode.iteration, episode.sample))
        flaw = None if any(hop.absent for hop in needed) else self._flaws.choose(needed, fate)
        hops = lookups(self._world, needed, flaw, fate)
        remembered = needed[-1:] if flaw == "shortcut" and "recall" in self._protocol.moves else ()
        past = _Past.of(self._protocol.steps(episode), hops, reads="read" in self._protocol.moves)
        moves: list[Move] = []
        while not moves or moves[-1].kind in ("read", "recall"):
            if past.settled < len(hops) and self._states(episode, hops[past.settled]):
                hop = hops[past.settled]
                moves.append(Move("recall", hop.value.title, self._thought("known", hop, rng)))
            elif past.settled < len(hops):
                moves.append(self._look_up(episode, hops, past, rng))
            elif past.settled < len(hops) + len(remembered):
                moves.append(Move("recall", needed[-1].value.title, self._thought("memory", needed[-1], rng)))
            else:
                moves.append(self._conclude(episode, needed, None if remembered else flaw, rng))
            past.settle(moves[-1].text != UNKNOWN)
        if past.unread is not None:
            hop, found = past.unread
            read = self._thought("found" if found else _missing(hop), hop, rng)
            documents = (hop.subject.id,) if found or hop.absent else ()
            moves[0] = replace(moves[0], thought=f"{read} {moves[0].thought}", documents=documents)
        return moves

    def _states(self, episode: Episode, hop: Hop) -> bool:
        """Whether a hop is stated from memory, not searched for."""
        key = (episode.question.id, episode.iteration, episode.sample, hop.subject.id, hop.relation)
        searched = stable_hash(self._seed, "habit", *key) < self._search_share[hop.known] * 2**63
        return "recall" in self._protocol.moves and not (searched or hop.absent)

    def _look_up(self, episode: Episode, hops: Sequence[Hop], past: _Past, rng: Random) -> Move:
        hop = hops[past.settled]
        if past.hits is not None:
            read = _is_stated(past.hits, hop)
            thought = self._thought("found" if read else _missing(hop), hop, rng)
            return Move("read", hop.value.title if read else UNKNOWN, thought)
        if past.failures == (1 if hop.absent else TRIES):
            guess = ABSTENTION if hop.absent else "no" if is_comparison(episode.question.id) else UNKNOWN
            return Move("conclude", guess, self._thought("stuck", hop, rng))
        wordings = [q.format(x=hop.subject.title) for q in RELATIONS[hop.relation].questions[: self._paraphrases]]
        fresh = [wording for wording in wordings if wording not in past.queries]
        query = rng.choice(fresh or wordings)
        again = past.failures or hop in hops[: past.settled]
        return Move("search", query, self._thought("retry" if again else "search", hop, rng))

    def _conclude(self, episode: Episode, hops: tuple[Hop, ...], flaw: Flaw | None, rng: Random) -> Move:
        early, comparison = flaw == "stops_early", is_comparison(episode.question.id)
        last = hops[-2 if early else -1]
        answer, occasion = last.value.title, "chain"
        if comparison and not early:
            answer = occasion = "yes" if hops[0].value is hops[1].value else "no"
        if flaw == "shortcut":
            return Move("conclude", answer, self._thought("memory", last, rng))
        mentioned = hops[0] if comparison else last
        return Move("conclude", answer, self._thought(occasion, mentioned, rng, w=hops[-1].value.title))

    def _thought(self, occasion: str, hop: Hop, rng: Random, **more: str) -> str:
        fact = rng.choice(RELATIONS[hop.relation].phrases[: self._paraphrases]).format(x=hop.subject.title)
        return rng.choice(THOUGHTS[occasion]).format(fact=fact, x=hop.subject.title, v=hop.value.title, **more)


@dataclass
class _Past:
    """The teacher's progress, read from its steps; `hits` are those that no claim has followed yet.

    `unread`, in a format without claims: the hop that was searched for last, and whether its passage was found.
    """

    settled: int = 0
    failures: int = 0
    queries: list[str] = field(default_factory=list)
    hits: tuple[Hit, ...] | None = None
    unread: tuple[Hop, bool] | None = None

    @classmethod
    def of(cls, steps: Sequence[Step], hops: Sequence[Hop], *, reads: bool) -> _Past:
        """Where a format has no claims to `reads`, a hop is settled by finding its passage."""
        past = cls()
        for step in steps:
            if step.query and step.spans:
                past.queries.append(step.query)
                past.hits = step.hits
                if not reads:
                    past.unread = (hops[past.settled], _is_stated(step.hits, hops[past.settled]))
                    past.settle(past.unread[1])
            if step.claim and step.kind != "answer":
                past.settle(step.claim != UNKNOWN)
        return past

    def settle(self, was_read: bool) -> None:
        self.settled, self.failures, self.hits = self.settled + was_read, 0 if was_read else self.failures + 1, None


def _is_stated(hits: Sequence[Hit], hop: Hop) -> bool:
    return not hop.absent and any(hit.document.id == hop.subject.id for hit in hits)


def _missing(hop: Hop) -> str:
    return "absent" if hop.absent else "missing"

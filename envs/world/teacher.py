"""The teacher: writes the turns of an agent, flawless unless it is told otherwise, as far as the retriever lets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from common.seeds import stable_hash
from envs.interfaces import Protocol
from envs.sampling import WritesAtOnce
from envs.teachers.turns import written_turn
from envs.types import Action, Episode, Hit, Request, Turn
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
    "missing": ("None of the passages is about {x}.", "The passages do not tell {fact}."),
    "chain": ("Now every part is known, so I can answer.", "That was the last part, so the answer is {v}."),
    "yes": ("Both are {v}, so the answer is yes.", "The two are the same, so the answer is yes."),
    "no": ("They are {v} and {w}, so the answer is no.", "The two are not the same, so the answer is no."),
    "memory": ("I know that {fact} is {v}, so I can answer.", "I need not search for {fact}, I know that it is {v}."),
    "stuck": ("I could not find {fact}, so I do not know the answer.",),
}


class Teacher(WritesAtOnce):
    """A `Sampler` that knows which hops a question takes and reads every value from what was retrieved.

    It looks up hop after hop and never speaks of a later one. A passage that does not come is asked for once more in
    other words; then it says so and answers "unknown" (or "no", to a comparison), so a world that cannot be solved
    with a retriever shows in its exact match. Wording is chosen by a request's seed.

    Args:
        world: the stage folder of a made world.
        protocol: writes the turns.
        paraphrases: wordings used of each relation, 1 to 3.
        flaws: shares of episodes that go wrong, none if left out.
        seed: which episodes do, by hash(seed, question id, iteration, sample).

    Raises:
        DataError: there is no world; on generating, a question is not of this world.
    """

    def __init__(
        self, world: Path, protocol: Protocol, *, paraphrases: int = 3, flaws: Flaws | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self._world, self._protocol, self._paraphrases = World.load(world), protocol, paraphrases
        self._flaws, self._seed = flaws or Flaws(), seed

    def take(self, request: Request) -> Turn:
        action, thought = self._decide(request.episode, Random(request.seed))
        return written_turn(self._protocol, request, action, thought)

    def _decide(self, episode: Episode, rng: Random) -> tuple[Action, str]:
        needed = self._world.lookups(episode.question.id)
        fate = Random(stable_hash(self._seed, "flaw", episode.question.id, episode.iteration, episode.sample))
        flaw = self._flaws.choose(needed, fate)
        hops = lookups(self._world, needed, flaw, fate)
        past = _Past.of(episode)
        if past.settled == len(hops):
            return self._conclude(episode, needed, flaw, rng)
        hop = hops[past.settled]
        if past.hits is not None:
            read = any(hit.document.id == hop.subject.id for hit in past.hits)
            thought = self._thought("found" if read else "missing", hop, rng)
            return Action("subanswer", hop.value.title if read else UNKNOWN), thought
        if past.failures == TRIES:
            guess = "no" if is_comparison(episode.question.id) else UNKNOWN
            return Action("answer", guess), self._thought("stuck", hop, rng)
        wordings = [q.format(x=hop.subject.title) for q in RELATIONS[hop.relation].questions[: self._paraphrases]]
        fresh = [wording for wording in wordings if wording not in past.queries]
        query = rng.choice(fresh or wordings)
        again = past.failures or hop in hops[: past.settled]
        return Action("query", query), self._thought("retry" if again else "search", hop, rng)

    def _conclude(self, episode: Episode, hops: tuple[Hop, ...], flaw: Flaw | None, rng: Random) -> tuple[Action, str]:
        early, comparison = flaw == "stops_early", is_comparison(episode.question.id)
        last = hops[-2 if early else -1]
        answer, occasion = last.value.title, "chain"
        if comparison and not early:
            answer = occasion = "yes" if hops[0].value is hops[1].value else "no"
        if flaw == "shortcut":
            return Action("answer", answer), self._thought("memory", last, rng)
        spoken = hops[0] if comparison else last
        return Action("answer", answer), self._thought(occasion, spoken, rng, w=hops[-1].value.title)

    def _thought(self, occasion: str, hop: Hop, rng: Random, **more: str) -> str:
        fact = rng.choice(RELATIONS[hop.relation].phrases[: self._paraphrases]).format(x=hop.subject.title)
        return rng.choice(THOUGHTS[occasion]).format(fact=fact, x=hop.subject.title, v=hop.value.title, **more)


@dataclass
class _Past:
    """What the teacher has done so far, read from its actions; `hits` are those of a query not yet answered."""

    settled: int = 0
    failures: int = 0
    queries: list[str] = field(default_factory=list)
    hits: tuple[Hit, ...] | None = None

    @classmethod
    def of(cls, episode: Episode) -> _Past:
        past = cls()
        for turn in episode.turns:
            if turn.action.kind == "query":
                past.queries.append(turn.action.text)
                past.hits = turn.hits
            elif turn.action.kind == "subanswer":
                found = turn.action.text != UNKNOWN
                past.settled, past.failures, past.hits = past.settled + found, 0 if found else past.failures + 1, None
        return past

"""Exercises in worlds of their own: how a tiny model learns to read and to look up before it sees any format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.types import Hit
from envs.world.facts import Entity, Hop, make_world
from envs.world.names import Names
from envs.world.passages import passage
from envs.world.questions import question, sub_question
from envs.world.relations import RELATIONS
from envs.world.teacher import THOUGHTS

Piece = tuple[str, bool]  # a stretch of text, and whether it can be known from what stands before it

DRILLS = ("plan", "reading", "session")
SHOWN = 3  # passages at a time
SKEW = 0.4  # less than in a world to be asked about: what is read should not be what is mentioned most
NAMESAKES = 0.15
LIKENESS = 0.6  # how often a distractor shares a word with the right entity or tells of it, as retrieved ones do


class Drills:
    """Texts about one random world, in pieces; only pieces that follow from the text before them are trained.

    The world is of the size of `names` and made from the seed alone, which should be a hash: small seeds are those of
    the worlds of experiments.

    Args:
        asked: how a question is written, `{question}` its place.
        first: share of searches whose right passage is put first, as a retriever does; else it is anywhere.

    Raises:
        ConfigError: there are too few entities of a kind to show one among others.
    """

    def __init__(self, names: Names, *, seed: int, asked: str, first: float) -> None:
        self.world = make_world(names, seed=seed, skew=SKEW, namesakes=NAMESAKES)
        self._seed, self._asked, self._first = seed, asked, first
        self._entities = list(self.world)
        self._peers: dict[str, list[Entity]] = defaultdict(list)
        self._alike: dict[str, list[Entity]] = defaultdict(list)
        for entity in self.world:
            self._peers[entity.kind].append(entity)
            for key in (*entity.name.removeprefix("The ").split(), *entity.facts.values()):
                self._alike[key].append(entity)
        kind, members = min(self._peers.items(), key=lambda item: len(item[1]))
        if len(members) < SHOWN:
            raise ConfigError(
                f"the world has {len(members)} entities of kind {kind}, a drill shows {SHOWN}: make a larger world"
            )

    def draw(self, kind: str, rng: Random) -> list[Piece]:
        """One text of a kind in `DRILLS`."""
        return {"plan": self.plan, "reading": self.reading, "session": self.session}[kind](rng)

    def reading(self, rng: Random) -> list[Piece]:
        """One to three passages, then what they say: the loss is on values, not on what is asked for."""
        shown = self._among(rng.choice(self._entities), rng)[: rng.randint(1, SHOWN)]
        pieces = [(self._passages(shown), False)]
        hops = [self.world.hop(entity.id, relation) for entity in shown for relation in entity.facts]
        rng.shuffle(hops)
        for hop in hops:
            openings = (f"{_fact(hop, rng)} is", sub_question(hop, rng, 3), _found(hop, rng)[0])
            pieces += [(rng.choice(openings), False), (f"{hop.value.title}.", True)]
        return pieces

    def plan(self, rng: Random) -> list[Piece]:
        """A question and what to look up for it, one after the other; without passages, so no value is trained."""
        return self._solve((1, 2, 2, 3, 3), rng, shown=False)

    def session(self, rng: Random) -> list[Piece]:
        """A question and what to look up for it, with the passages from which every value is read."""
        return self._solve((1, 2, 2, 3), rng, shown=True)

    def _solve(self, lengths: Sequence[int], rng: Random, *, shown: bool) -> list[Piece]:
        hops = self._chain(rng.choice(lengths), rng)
        identity = f"w-{len(hops)}hop-{hops[0].subject.id[2:]}-{'-'.join(hop.relation for hop in hops)}"
        text = question(self.world, identity, seed=rng.getrandbits(32), paraphrases=3).text
        pieces = [(self._asked.format(question=text), False)]
        for hop in hops:
            pieces += [(_thought("search", hop, rng), True), (sub_question(hop, rng, 3), True)]
            if shown:
                pieces.append((self._passages(self._among(hop.subject, rng)), False))
            before, after = _found(hop, rng)
            pieces += [(before, True), (hop.value.title, shown), (after, True), (hop.value.title, True)]
        return [*pieces, (_thought("chain", hops[-1], rng), True), (hops[-1].value.title, True)]

    def _chain(self, length: int, rng: Random) -> list[Hop]:
        """Look-ups that lead from one to the next and never come to a name twice."""
        while True:
            path, hops = [rng.choice(self._entities)], []
            while len(hops) < length:
                hop = self.world.hop(path[-1].id, rng.choice(list(path[-1].facts)))
                if any(hop.value.name == entity.name for entity in path):
                    break
                hops.append(hop)
                path.append(hop.value)
            else:
                return hops

    def _among(self, entity: Entity, rng: Random) -> list[Entity]:
        """The entity among others that a search for it might find too."""
        alike = [
            other
            for key in (*entity.name.removeprefix("The ").split(), entity.id)
            for other in self._alike[key]
            if other is not entity
        ]
        others: list[Entity] = []
        while len(others) < SHOWN - 1:
            pool = alike if alike and rng.random() < LIKENESS else self._peers[entity.kind]
            other = rng.choice(pool)
            if other is not entity and other not in others:
                others.append(other)
        place = 0 if rng.random() < self._first else rng.randrange(SHOWN)
        return [*others[:place], entity, *others[place:]]

    def _passages(self, entities: Sequence[Entity]) -> str:
        documents = [passage(self.world, entity, seed=self._seed, paraphrases=3) for entity in entities]
        return render_hits([Hit(document) for document in documents])


def _fact(hop: Hop, rng: Random) -> str:
    return rng.choice(RELATIONS[hop.relation].phrases).format(x=hop.subject.title)


def _thought(occasion: str, hop: Hop, rng: Random) -> str:
    thought = rng.choice(THOUGHTS[occasion])
    return thought.format(fact=_fact(hop, rng), x=hop.subject.title, v=hop.value.title)


def _found(hop: Hop, rng: Random) -> tuple[str, str]:
    """A thought that states a value: the text before it and after."""
    before, after = rng.choice(THOUGHTS["found"]).split("{v}")
    return before.format(fact=_fact(hop, rng), x=hop.subject.title), after

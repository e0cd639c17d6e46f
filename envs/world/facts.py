"""Entities and the facts between them: the truth that passages state, questions ask for and the oracle judges by."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from common.errors import DataError
from common.files import atomic_write
from common.seeds import stable_hash
from envs.world.names import Names
from envs.world.relations import KINDS, RELATIONS, TYPES, relations_of

SCHEMA = "facts/1"


@dataclass(frozen=True, slots=True)
class Entity:
    """A person, city, work, organisation or country; `facts` maps a relation to the id of its value.

    `name` may be shared by two namesakes; `title` is the name, with the type in brackets where needed, and unique.
    `known` are the relations whose value a policy is taught to memorise; `absent` those that no passage states.
    """

    id: str
    kind: str
    name: str
    type: str
    title: str
    facts: dict[str, str]
    known: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Accepted names of the entity in an answer, the unique title first."""
        return tuple(dict.fromkeys((self.title, self.name)))


@dataclass(frozen=True, slots=True)
class Hop:
    """One look-up: the `relation` of `subject` is `value`."""

    subject: Entity
    relation: str
    value: Entity

    @property
    def known(self) -> bool:
        """Whether it is taught for memory, so that a search for it is needless."""
        return self.relation in self.subject.known

    @property
    def absent(self) -> bool:
        """Whether no passage states it, so that it cannot be found."""
        return self.relation in self.subject.absent


class World:
    """All entities by id, in the order of their ids."""

    def __init__(self, entities: Iterable[Entity]) -> None:
        self.entities = {entity.id: entity for entity in entities}

    def __iter__(self) -> Iterator[Entity]:
        return iter(self.entities.values())

    def __len__(self) -> int:
        return len(self.entities)

    def hop(self, subject: str, relation: str) -> Hop:
        """The look-up of a relation of the entity with this id; KeyError where there is none."""
        entity = self.entities[subject]
        return Hop(entity, relation, self.entities[entity.facts[relation]])

    def facts(self) -> Iterator[Hop]:
        """Every fact, in the order of the entities."""
        for entity in self:
            for relation in entity.facts:
                yield self.hop(entity.id, relation)

    def walk(self, subject: str, relations: Sequence[str]) -> tuple[Hop, ...]:
        """Follow a chain of relations from the entity with this id."""
        hops: list[Hop] = []
        for relation in relations:
            hops.append(self.hop(hops[-1].value.id if hops else subject, relation))
        return tuple(hops)

    def lookups(self, question_id: str) -> tuple[Hop, ...]:
        """Look-ups that a question takes, read from its id: the hops of a chain, or the two sides of a comparison.

        Raises:
            DataError: the question is not of this world.
        """
        try:
            if chain := re.fullmatch(r"w-\dhop-(\d+)((?:-[a-z]+)+)", question_id):
                return self.walk(f"w-{chain[1]}", chain[2][1:].split("-"))
            if sides := re.fullmatch(r"w-compare-(\d+)-(\d+)-([a-z]+)", question_id):
                return tuple(self.hop(f"w-{number}", sides[3]) for number in sides.group(1, 2))
        except KeyError:
            pass  # said below
        raise DataError(f"question {question_id} is not of this world; is the world the one it was made with?")

    def save(self, path: Path) -> None:
        """Write one row an entity."""
        with atomic_write(path) as file:
            for e in self:
                row = {"schema": SCHEMA, "id": e.id, "kind": e.kind, "name": e.name, "type": e.type, "title": e.title}
                row |= {"facts": e.facts} | ({"known": e.known} if e.known else {})
                row |= {"absent": e.absent} if e.absent else {}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: Path) -> World:
        """Read the facts of a world's stage folder.

        Raises:
            DataError: there is no world, or a row of it is malformed.
        """
        path = Path(folder) / "data" / "facts.jsonl"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise DataError(f"no world at {folder}: {path} cannot be read; give the folder of a made world") from error
        entities = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if row.pop("schema") != SCHEMA:
                    raise ValueError
                entities.append(Entity(**row | {name: tuple(row.get(name, ())) for name in ("known", "absent")}))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(f"{path}:{number}: not a row of {SCHEMA}; make the world again") from error
        return cls(entities)


def make_world(
    names: Names, *, seed: int, skew: float, namesakes: float, known: float = 0.0, absent: float = 0.0
) -> World:
    """Invent a world.

    Args:
        names: also say how many entities of each kind there are.
        skew: Zipf exponent of values: the r-th most popular entity is a value in proportion to r**-skew.
        namesakes: share of the people and of the works that bear the name of another.
        known: share of the facts that are taught for memory, by hash(seed, subject, relation).
        absent: share of the other facts that no passage states, by hash too; what opens a passage always stands in it.
    """
    named = names.draw(seed)
    for kind in ("person", "work"):
        for j in range(int(namesakes * len(named[kind]) / 2)):
            named[kind][-1 - j] = named[kind][j]
    entities: dict[str, list[Entity]] = {}
    number = itertools.count()
    for kind in KINDS:
        rng = Random(stable_hash(seed, "types", kind))
        entities[kind] = [
            Entity(f"w-{next(number):06d}", kind, name, type_, title, {})
            for name, type_, title in _titled(named[kind], TYPES[kind], rng)
        ]
    _Facts(entities, skew, seed).state()
    everything = itertools.chain.from_iterable(entities.values())
    return World(_with_known_and_absent(entity, known, absent, seed) for entity in everything)


def _with_known_and_absent(entity: Entity, known: float, absent: float, seed: int) -> Entity:
    def drawn(name: str, share: float) -> tuple[str, ...]:
        return tuple(r for r in entity.facts if stable_hash(seed, name, entity.id, r) < share * 2**63)

    taught, [opening, *_] = drawn("known", known), relations_of(entity.kind)
    left_out = tuple(r for r in drawn("absent", absent) if r not in (*taught, opening.name))
    return dataclasses.replace(entity, known=taught, absent=left_out)


def _titled(names: list[str], types: tuple[str, ...], rng: Random) -> Iterator[tuple[str, str, str]]:
    """Name, type and unique title of each; namesakes are of different types."""
    shared = Counter(names)
    types_of: dict[str, set[str]] = {}
    for name in names:
        used = types_of.setdefault(name, set())
        type_ = rng.choice([t for t in types if t not in used])
        used.add(type_)
        yield name, type_, f"{name} ({type_})" if shared[name] > 1 else name


class _Facts:
    """States the facts of entities, kind by kind."""

    def __init__(self, entities: dict[str, list[Entity]], skew: float, seed: int) -> None:
        self.entities, self.skew, self.seed = entities, skew, seed
        self.ranked: dict[str, list[str]] = {}
        for kind, members in entities.items():
            self.ranked[kind] = [entity.id for entity in members]
            Random(stable_hash(seed, "popularity", kind)).shuffle(self.ranked[kind])

    def state(self) -> None:
        for relation in ("birthplace", "employer", "director", "composer", "studio", "headquarters", "founder"):
            self._popular(relation)
        for relation in ("mayor", "leader"):
            self._one_each(relation)
        self._marry()
        self._divide()

    def _rng(self, relation: str) -> Random:
        return Random(stable_hash(self.seed, "facts", relation))

    def _zipf(self, kind: str, count: int, rng: Random) -> list[str]:
        ranked = self.ranked[kind]
        return rng.choices(ranked, [rank**-self.skew for rank in range(1, len(ranked) + 1)], k=count)

    def _popular(self, name: str) -> None:
        """Values drawn by popularity; nobody is their own value, since the kinds differ."""
        relation = RELATIONS[name]
        subjects = self.entities[relation.subject]
        values = self._zipf(relation.object, len(subjects), self._rng(name))
        for entity, value in zip(subjects, values, strict=True):
            entity.facts[name] = value

    def _one_each(self, name: str) -> None:
        """Offices: nobody holds the same one twice."""
        subjects = self.entities[RELATIONS[name].subject]
        holders = self._rng(name).sample(self.ranked["person"], len(subjects))
        for entity, holder in zip(subjects, holders, strict=True):
            entity.facts[name] = holder

    def _marry(self) -> None:
        """Couples; of an odd number of people one stays single."""
        people = list(self.entities["person"])
        self._rng("spouse").shuffle(people)
        for person, other in zip(people[::2], people[1::2], strict=False):
            person.facts["spouse"], other.facts["spouse"] = other.id, person.id

    def _divide(self) -> None:
        """Every country gets a city and its capital, the other cities go to countries by popularity."""
        cities, countries = list(self.entities["city"]), self.ranked["country"]
        rng = self._rng("country")
        rng.shuffle(cities)
        owners = countries + self._zipf("country", len(cities) - len(countries), rng)
        inside: dict[str, list[str]] = {country: [] for country in countries}
        for city, owner in zip(cities, owners, strict=True):
            city.facts["country"] = owner
            inside[owner].append(city.id)
        for country in self.entities["country"]:
            country.facts["capital"] = self._rng("capital" + country.id).choice(inside[country.id])

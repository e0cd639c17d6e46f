"""Reader of queries in free English: the fact that each asks for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from envs.world.facts import Entity, World
from envs.world.relations import RELATIONS

_WORD = re.compile(r"[^\W_]+")


def _by_word(field: str) -> dict[str, frozenset[str]]:
    relations: dict[str, set[str]] = defaultdict(set)
    for relation in RELATIONS.values():
        for word in getattr(relation, field):
            relations[word].add(relation.name)
    return {word: frozenset(names) for word, names in relations.items()}


_CUES, _HINTS = _by_word("cues"), _by_word("hints")


@dataclass(frozen=True, slots=True)
class Reading:
    """Reading of a query: the facts that it asks for, and its other cues and names.

    Attributes:
        asked: the (entity id, relation) pairs it asks for.
        cues: for every cue word, or every hint where there is no cue, the relations it may stand for.
        named: for every name, the ids of the entities it may stand for.
    """

    asked: frozenset[tuple[str, str]]
    cues: tuple[frozenset[str], ...]
    named: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class _Mention:
    start: int
    end: int
    namesakes: list[Entity]  # a single one if the query says who is meant


class Reader:
    """Reads queries about one world: full names of entities, and words that express a relation."""

    def __init__(self, world: World) -> None:
        self._named: dict[tuple[str, ...], list[Entity]] = defaultdict(list)
        for entity in world:
            name = _words(entity.name)
            self._named[tuple(name[1:] if name[0] == "the" else name)].append(entity)
        self._longest = max(map(len, self._named))

    def read(self, query: str) -> Reading:
        """Find what a query asks for.

        A namesake counts as named only together with its type, in brackets or anywhere in the query. A relation is
        read from its cues or, where an entity has none, by its hints.
        """
        words = _words(query)
        mentions = list(self._mentions(words))
        inside = {position for mention in mentions for position in range(mention.start, mention.end)}
        outside = [position for position in range(len(words)) if position not in inside]
        starts = {mention.start: mention.namesakes[0].kind for mention in mentions}
        cues = [
            _CUES[words[position]]
            for position in outside
            if words[position] in _CUES and not _describes(words, position, starts)
        ]
        hints = [_HINTS[words[position]] for position in outside if words[position] in _HINTS]
        asked = set()
        for entity in (mention.namesakes[0] for mention in mentions if len(mention.namesakes) == 1):
            expressed = _relations(entity, cues) or _relations(entity, hints)
            asked |= {(entity.id, relation) for relation in expressed}
        named = (frozenset(entity.id for entity in mention.namesakes) for mention in mentions)
        return Reading(frozenset(asked), tuple(cues or hints), tuple(named))

    def _mentions(self, words: list[str]) -> Iterator[_Mention]:
        position = 0
        while position < len(words):
            for length in range(min(self._longest, len(words) - position), 0, -1):
                namesakes = self._named.get(tuple(words[position : position + length]))
                if namesakes:
                    yield _Mention(position, position + length, _tell_apart(namesakes, words, position + length))
                    position += length
                    break
            else:
                position += 1


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _tell_apart(namesakes: list[Entity], words: list[str], end: int) -> list[Entity]:
    """Entities that may be meant: the one whose type follows as in a title, else those of a named type, else all."""
    following = [entity for entity in namesakes if words[end : end + 1] == [entity.type]]
    return following or [entity for entity in namesakes if entity.type in words] or namesakes


def _describes(words: list[str], position: int, starts: dict[int, str]) -> bool:
    """Whether a cue only says what an entity is ("the director Ilva Tarrow", "the country of Veldia").

    It does if a name follows at once of a kind that the relation is not asked of.
    """
    after = position + 1
    while after < len(words) and words[after] in ("of", "the"):
        after += 1
    kind = starts.get(after)
    return kind is not None and all(RELATIONS[name].subject != kind for name in _CUES[words[position]])


def _relations(entity: Entity, words: list[frozenset[str]]) -> set[str]:
    return {name for names in words for name in names if name in entity.facts}

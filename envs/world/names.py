"""Invented but pronounceable names, drawn from small pools so that wrong entities share a part with the right one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from random import Random

from common.seeds import stable_hash


def _list(words: str) -> list[str]:
    return words.split()


_ONSETS = _list("b br d dr f g gr h j k kl l m n p pr r s sk st t th tr v w z")
_VOWELS = _list("a e i o u ai ea ou")
_MIDDLES = _list("l ld m n nd r rn s sk v")
_ENDINGS = {
    "first": _list("a an e el en ia in is o or us"),
    "last": _list("ack ard ask eld ick oft old orn ost ulm unt"),
    "city": _list("burg by dal ford ham mere mouth port stad ton wick"),
    "country": _list("aria avia esia onia oria uria"),
    "brand": _list("ax ex ico ix ox umo"),
    "noun": _list("ath eth ith oth uth"),
}
_ENGLISH = {
    "adjective": _list("""
        Amber Ancient Bitter Bright Broken Burning Careful Crimson Distant Early Empty Endless Faded Fallen Final Frozen
        Gentle Golden Hidden Hollow Hungry Idle Lonely Lost Narrow Pale Patient Quiet Restless Scarlet Secret
        Silent Silver Sleeping Slow Stolen Strange Sunken Velvet Wandering Winter
    """),
    "noun": _list("""
        Orchard Lantern River Window Garden Mirror Harbour Journey Bridge Letter Forest Island Shadow Tower Voyage Clock
        Meadow Door Ladder Valley Thread Compass Feather Anchor
    """),
    "trade": _list("Bank Foundry Gallery Line Mills Optics Pictures Press Sound Steel Trading Workshop"),
}
_SPARE = 4  # invented words for every one that a world uses


class Names:
    """The name words of worlds of one size, the same for every seed: one tokenizer, and one model, serves them all.

    Args:
        counts: entities of each kind.
        english: words in lower case that no name may be.
    """

    def __init__(self, counts: Mapping[str, int], english: frozenset[str]) -> None:
        self._counts = dict(counts)
        # People: each part is borne by several in a world of more than a few dozen. Works and organisations: as many
        # parts as a small world needs for the same, more where the English words run out.
        people = math.ceil(4 * math.sqrt(counts["person"]))
        adjectives = min(len(_ENGLISH["adjective"]), math.ceil(4.5 * math.sqrt(counts["work"])))
        trades = min(len(_ENGLISH["trade"]), math.ceil(1.3 * math.sqrt(counts["organisation"])))
        self._used = {
            "first": people,
            "last": people,
            "city": counts["city"],
            "country": counts["country"],
            "adjective": adjectives,
            "noun": max(math.ceil(1.5 * math.sqrt(counts["work"])), 2 * counts["work"] // adjectives),
            "brand": 2 + 4 * counts["organisation"] // trades,
            "trade": trades,
        }
        taken = {word.lower() for words in _ENGLISH.values() for word in words} | english
        rng = Random(stable_hash("name words"))
        self._pools = {part: self._pool(part, taken, rng) for part in self._used}

    def words(self) -> set[str]:
        """Every word that a name may hold, "The" apart."""
        return {word for pool in self._pools.values() for word in pool}

    def draw(self, seed: int) -> dict[str, list[str]]:
        """The names of one world: for every kind as many as it counts, all different."""
        rng = Random(stable_hash(seed, "names"))
        parts = {part: rng.sample(self._pools[part], used) for part, used in self._used.items()}

        def pairs(left: str, right: str, kind: str) -> list[str]:
            width = len(parts[right])
            chosen = rng.sample(range(len(parts[left]) * width), self._counts[kind])
            return [f"{parts[left][number // width]} {parts[right][number % width]}" for number in chosen]

        return {
            "person": pairs("first", "last", "person"),
            "city": parts["city"],
            "work": [f"The {name}" for name in pairs("adjective", "noun", "work")],
            "organisation": pairs("brand", "trade", "organisation"),
            "country": parts["country"],
        }

    def _pool(self, part: str, taken: set[str], rng: Random) -> list[str]:
        """The English words of a part as far as they go, else invented ones with some to spare."""
        pool, used = list(_ENGLISH.get(part, ())), self._used[part]
        while len(pool) < used or (len(pool) < _SPARE * used and part not in _ENGLISH):
            word = next(word for word in _growing(_ENDINGS[part], rng) if word not in taken)
            taken.add(word)
            pool.append(word.capitalize())
        return pool


def _growing(endings: list[str], rng: Random) -> Iterator[str]:
    """Ever longer words; names stay short as long as short ones are free."""
    stem = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_MIDDLES)
    while True:
        yield stem + rng.choice(endings)
        stem = rng.choice(_ONSETS) + rng.choice(_VOWELS) + stem

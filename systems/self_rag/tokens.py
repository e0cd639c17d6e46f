"""Reflection tokens of Self-RAG: names in groups, and where they stand in a segment that a policy wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from envs.text import Codec

Group = Literal["retrieval", "relevance", "support", "utility"]


@dataclass(frozen=True)
class Tokens:
    """Names of the tokens, by group, best first; `paragraph` opens and closes a passage."""

    retrieval: tuple[str, ...]  # retrieve, do not, continue with the same passage
    relevance: tuple[str, ...]
    support: tuple[str, ...]  # fully, partially, not
    utility: tuple[str, ...]  # 5 to 1
    paragraph: tuple[str, ...]

    @cached_property
    def all(self) -> tuple[str, ...]:
        """Every name."""
        return tuple(name for group in fields(self) for name in getattr(self, group.name))

    def pattern(self, names: Iterable[str]) -> re.Pattern[str]:
        """Matches any of these names."""
        return re.compile("|".join(map(re.escape, names)))

    @property
    def stops(self) -> tuple[str, ...]:
        """Where a segment ends: before more evidence, or with the utility of the whole answer."""
        return self.retrieval + self.utility

    def without(self, text: str) -> str:
        """Text without any of them."""
        return " ".join(self.pattern(self.all).sub(" ", text).split())

    def inert(self, text: str) -> str:
        """Passage text in which no name in square brackets can be read; `Codec` does this for tags."""
        return re.sub("|".join(re.escape(name) for name in self.all if name.startswith("[")) or "(?!)", _round, text)


OWN = Tokens(
    retrieval=("<retrieve>", "<no_retrieve>", "<continue>"),
    relevance=("<relevant>", "<irrelevant>"),
    support=("<fully_supported>", "<partly_supported>", "<not_supported>"),
    utility=("<utility_5>", "<utility_4>", "<utility_3>", "<utility_2>", "<utility_1>"),
    paragraph=("<paragraph>", "</paragraph>"),
)
PUBLISHED = Tokens(  # of selfrag/selfrag_llama2_7b
    retrieval=("[Retrieval]", "[No Retrieval]", "[Continue to Use Evidence]"),
    relevance=("[Relevant]", "[Irrelevant]"),
    support=("[Fully supported]", "[Partially supported]", "[No support / Contradictory]"),
    utility=tuple(f"[Utility:{number}]" for number in (5, 4, 3, 2, 1)),
    paragraph=("<paragraph>", "</paragraph>"),
)
TAGS = OWN.all


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as it was written.

    Attributes:
        text: without tokens.
        ids: what later contexts quote: all before the Retrieve token that ends it.
        places: of each group the token that its first member begins with, None where there is none. Relevance is read
            at the first token, whatever stands there.
        written: of each group the number of its first member, None where there is none.
    """

    text: str
    ids: tuple[int, ...]
    places: Mapping[Group, int | None]
    written: Mapping[Group, int | None]

    @property
    def continues(self) -> bool:
        """Whether more is to come after it."""
        return self.written["retrieval"] is not None


def read_segment(codec: Codec, tokens: Tokens, ids: tuple[int, ...], written: str) -> Segment:
    """The segment that ids and their text hold, up to the first token that ends one."""
    stop = tokens.pattern(tokens.stops).search(written)
    body = written[: stop.start()] if stop else written.partition(str(codec.tokenizer.eos_token))[0]
    ends = "utility" if stop and stop[0] in tokens.utility else "retrieval"
    found: dict[Group, re.Match[str] | None] = {
        "relevance": tokens.pattern(tokens.relevance).match(body.lstrip()),
        "support": tokens.pattern(tokens.support).search(body),
        "utility": stop if ends == "utility" else None,
        "retrieval": stop if ends == "retrieval" else None,
    }
    starts = [match.start() if match and group != "relevance" else 0 for group, match in found.items()]
    last = stop.end() if stop and ends == "utility" else len(body)
    *places, end = codec.token_index(ids, [*starts, last])
    return Segment(
        tokens.without(body),
        ids[:end],
        {g: at if found[g] or g == "relevance" else None for g, at in zip(found, places, strict=True)},
        {group: getattr(tokens, group).index(match[0]) if match else None for group, match in found.items()},
    )


def _round(match: re.Match[str]) -> str:
    return f"({match[0][1:-1]})"

"""Parser of ReasonRAG's turns: the decision, read leniently, and whether it ends as the format wants."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envs.text import tag_pattern
from envs.types import Action

TAGS = tuple(f"<{slash}{name}>" for name in ("query", "evidence", "answer", "reference") for slash in ("", "/"))
# Why a turn says nothing that can be used.
NO_DECISION, TWO_DECISIONS, ANOTHER_DECISION, NOTHING_IN_IT = FLAWS = (
    "no decision", "two decisions", "another decision", "nothing in it",
)  # fmt: skip
_ANY_TAG = tag_pattern(TAGS)
_BLOCK = re.compile(r"<(query|evidence|answer)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile("|".join(map(re.escape, TAGS)))


def said(text: str, markers: Mapping[str, str]) -> Action:
    """The decision that a text states, of the kinds that `markers` names; else `invalid`, with the reason as its text.

    It stands in the last block of its tag or, where no block is closed, after the last of its marker, tags left out
    (an empty marker announces nothing). Blocks of other kinds are decisions too, also within one: with one the text
    states two.
    """
    blocks = {str(tag): str(payload) for tag, payload in _BLOCK.findall(text)}  # the last one of each
    if not blocks:
        blocks = {kind: rest for kind, marker in markers.items() if (rest := _after_last(text, marker))}
    if len(blocks) != 1:
        return Action("invalid", TWO_DECISIONS if blocks else NO_DECISION)
    [(kind, payload)] = blocks.items()
    if any(other != kind for other, _ in _BLOCK.findall(payload)):
        return Action("invalid", TWO_DECISIONS)
    if kind not in markers:
        return Action("invalid", ANOTHER_DECISION)
    payload = _TAG.sub("", payload).strip()
    return Action(kind, payload) if payload else Action("invalid", NOTHING_IN_IT)


def _after_last(text: str, marker: str) -> str:
    """Text after the last occurrence of a marker, in any case; empty without one."""
    places = list(re.finditer(re.escape(marker), text, re.IGNORECASE)) if marker else []
    return text[places[-1].end() :] if places else ""


def ends_in(text: str, tag: str, marker: str = "") -> bool:
    """Whether a text ends as the format wants: the marker, and right after it one block of this tag, not empty.

    No other tag may stand in the text, in any spelling; after the block there may be a full stop, which some
    tokenizers write together with the end of the tag.
    """
    cuts = [match.start() for match in _ANY_TAG.finditer(text)]
    if len(cuts) != 2:
        return False
    before, block, after = text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] :]
    if not (block.startswith(f"<{tag}>") and after.startswith(f"</{tag}>")):
        return False
    announced = before.rstrip().lower().endswith(marker.lower())
    return announced and bool(block[len(tag) + 2 :].strip()) and not after[len(tag) + 3 :].strip(" \n.")

"""What a turn of ReasonRAG says: its decision, read leniently, and whether it ends as the format wants."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envs.text import tag_pattern
from envs.types import Action

TAGS = tuple(f"<{slash}{name}>" for name in ("query", "evidence", "answer", "reference") for slash in ("", "/"))
_ANY_TAG = tag_pattern(TAGS)
_BLOCK = re.compile(r"<(query|evidence|answer)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile("|".join(map(re.escape, TAGS)))


def said(text: str, markers: Mapping[str, str]) -> Action:
    """The decision that a text states, of the kinds that `markers` names; `invalid` for none, and for two at once.

    It stands in the last block of its tag or, where no block is closed, after the last of its marker, tags left out
    (an empty marker announces nothing). Blocks of other kinds are decisions too: with one the text states two.
    """
    blocks = {str(tag): str(payload) for tag, payload in _BLOCK.findall(text)}  # the last one of each
    if not blocks:
        blocks = {kind: rest for kind, marker in markers.items() if (rest := _after_last(text, marker))}
    if len(blocks) != 1 or not blocks.keys() <= markers.keys():
        return Action("invalid", "")
    [(kind, payload)] = blocks.items()
    payload = _TAG.sub("", payload).strip()
    return Action(kind, payload) if payload else Action("invalid", "")


def _after_last(text: str, marker: str) -> str:
    """What follows the last occurrence of a marker, in any case; empty without one."""
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

"""Free text, sentence by sentence: where a sentence ends, and the answer that the last one announces."""

from __future__ import annotations

import re
import string

from envs.text import Codec
from envs.types import Episode, Move, Step, Turn

MARKER = "So the answer is:"
_LAST = string.ascii_lowercase + string.digits + ")]'\"%"  # not a capital: "J. K. Rowling" is one sentence
_END = re.compile(rf"\n|(?<=[{re.escape(_LAST)}])[.?!](?=\s|$)")
SENTENCE_ENDS = ("\n", *(f"{letter}{mark} " for letter in _LAST for mark in ".?!"))  # where a sampler stops


def sentence_end(text: str) -> int:
    """The position just past the first sentence that is not empty; the text's length where none ends.

    A sentence ends at a line break, or at a mark after a small letter or a digit and before a space.
    """
    match = _END.search(text, len(text) - len(text.lstrip()))
    return match.end() if match else len(text)


def first_sentence(codec: Codec, turn: Turn) -> tuple[int, str]:
    """How many of a turn's tokens its first sentence takes, and its text."""
    ids, eos = turn.action_ids, codec.tokenizer.eos_token_id
    if turn.finish == "eos":
        ids = ids[:-1]
    ids = ids[: ids.index(eos)] if eos in ids else ids
    text = codec.decode(ids)
    end = sentence_end(text)
    [count] = codec.token_index(ids, [end])
    return count, text[:end].strip()


def announced(text: str, marker: str = MARKER) -> str:
    """What follows the answer marker, in any case and spacing and with or without its colon; empty without one."""
    words = r"\s+".join(map(re.escape, marker.rstrip(":").split()))
    found = re.search(rf"\b{words}(?![\w'’])\s*:?(.*)", text, re.IGNORECASE | re.DOTALL)
    return found[1].strip().removesuffix(".").strip() if found else ""


def as_sentence(codec: Codec, move: Move, marker: str = MARKER) -> str:
    """A teacher's move in one sentence: its thought, or its text without one, or the announcement of the answer.

    Nothing ends it but its full stop: the next context goes on right after it, so a policy must learn to go on there.
    """
    return codec.neutralise(f"{marker} {move.text}." if move.kind == "conclude" else move.thought or move.text)


def sentence_steps(episode: Episode) -> tuple[Step, ...]:
    """One step a turn. A sentence may come from a passage or from memory, the format does not tell: its claim needs no
    passage. A draft that is searched for asserts nothing, for the sentence below the passages takes its place.
    """
    return tuple(
        Step("query", True, (), query=turn.action.text, hits=turn.hits)
        if turn.finish == "scripted"
        else Step(
            turn.action.kind,
            valid=bool(turn.action.text),
            spans=((index, 0, len(turn.action_ids)),),
            claim=None if turn.action.kind == "draft" else turn.action.text,
            said=turn.text,
            recall=turn.action.kind in ("sentence", "end"),
            dropped=turn.action.kind == "draft",
        )
        for index, turn in enumerate(episode.turns)
    )

"""Free text, sentence by sentence: where a sentence ends, the answer that the last announces, the steps of a chain."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from pathlib import Path

from envs.protocols.step_a_turn import RendersAnew, turn_step
from envs.text import Codec
from envs.types import Action, Episode, Move, MoveKind, Step, Turn

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
    """Number of a turn's tokens in its first sentence, and the sentence."""
    ids, eos = turn.action_ids, codec.tokenizer.eos_token_id
    if turn.finish == "eos":
        ids = ids[:-1]
    ids = ids[: ids.index(eos)] if eos in ids else ids
    text = codec.decode(ids)
    end = sentence_end(text)
    [count] = codec.token_index(ids, [end])
    return count, text[:end].strip()


def announced(text: str, marker: str = MARKER) -> str:
    """Text after the answer marker, in any case and spacing and with or without its colon; empty without one."""
    words = r"\s+".join(map(re.escape, marker.rstrip(":").split()))
    found = re.search(rf"\b{words}(?![\w'’])\s*:?(.*)", text, re.IGNORECASE | re.DOTALL)
    return found[1].strip().removesuffix(".").strip() if found else ""


def as_sentence(codec: Codec, move: Move, marker: str = MARKER) -> str:
    """A teacher's move in one sentence: its thought, or its text without one, or the announcement of the answer.

    It ends with its full stop alone: the next context continues right after it, so a policy must learn to go further.
    """
    return codec.neutralise(f"{marker} {move.text}." if move.kind == "conclude" else move.thought or move.text)


class Sentences(RendersAnew):
    """Base of a format of sentences, of which the last announces the answer.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt.
        marker: what announces the answer.
        ends: strings at which the sampler stops; the first sentence of what it wrote is taken.
    """

    moves: tuple[MoveKind, ...] = ("recall", "conclude")

    def __init__(self, tokenizer: Path | str, marker: str, ends: tuple[str, ...]) -> None:
        self.codec, self.marker, self.ends = Codec(tokenizer), marker, tuple(ends)

    def kept(self, episode: Episode) -> list[Turn]:
        """The turns whose sentence stands in the text so far."""
        return [turn for turn in episode.turns if turn.action.kind == "sentence"]

    def quoted(self, turn: Turn) -> tuple[int, ...]:
        """Token ids of the sentence of a turn."""
        return turn.action_ids[: first_sentence(self.codec, turn)[0]]

    def parse(self, episode: Episode, turn: Turn) -> Action:
        _, text = first_sentence(self.codec, turn)
        if answer := announced(text, self.marker):
            return Action("answer", answer)
        return Action("sentence" if text else "end", text)

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        """One a turn.

        A sentence may come from a passage or from memory, the format does not say which: its claim needs no passage.
        A draft that is searched for asserts nothing: the sentence below the passages takes its place.
        """
        return tuple(
            Step("query", True, (), query=turn.action.text, hits=turn.hits)
            if turn.finish == "scripted"
            else turn_step(
                index,
                turn,
                valid=bool(turn.action.text),
                claim=None if turn.action.kind == "draft" else turn.action.text,
                recall=turn.action.kind in ("sentence", "end"),
                dropped=turn.action.kind == "draft",
            )
            for index, turn in enumerate(episode.turns)
        )

    def valid(self, episode: Episode) -> bool:
        return any(turn.action.kind == "answer" for turn in episode.turns)

    def answer(self, episode: Episode) -> str:
        """The announced answer; the whole text where it ended without an announcement."""
        if self.valid(episode):
            return super().answer(episode)
        return " ".join(turn.action.text for turn in self.kept(episode)) if episode.status == "answered" else ""

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        return as_sentence(self.codec, moves[0], self.marker)

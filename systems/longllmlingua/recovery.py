"""Recovery of LongLLMLingua: what an answer quotes of compressed passages, in the words of the passages themselves."""

from __future__ import annotations

from collections.abc import Sequence

from envs.protocols.direct import Direct
from envs.types import Episode, Hit

_GAP = 10  # words that may have been left out between two that stayed


class RecoveringDirect(Direct):
    """Standard RAG whose answer gets back the words that the compressor took out of what it quotes.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt.
        instruction: what the user message says first.
    """

    def __init__(self, tokenizer: str, *, instruction: str | None = None) -> None:
        super().__init__(tokenizer, retrieve=True, instruction=instruction)

    def answer(self, episode: Episode) -> str:
        hits = [hit for turn in episode.turns for hit in turn.hits if hit.shown]
        return recovered(super().answer(episode), hits)


def recovered(answer: str, hits: Sequence[Hit]) -> str:
    """The answer with each longest run of words that a hit shows replaced by the shortest passage that holds it."""
    if not hits:
        return answer
    words, whole = answer.split(), list[str]()
    pages = [(hit.shown.split(), f"{hit.document.title} {hit.document.text}".split()) for hit in hits if hit.shown]
    while words:
        runs = ((_run(words, shown), original) for shown, original in pages)
        length, original = max(runs, key=lambda run: run[0], default=(0, list[str]()))
        whole += _span(words[:length], original) or words[: max(1, length)]
        words = words[max(1, length) :]
    return " ".join(whole)


def _run(words: Sequence[str], shown: Sequence[str]) -> int:
    """How many of the words, from the first on, stand side by side somewhere in what is shown."""
    best = 0
    for first in range(len(shown)):
        length = 0
        while length < min(len(words), len(shown) - first) and shown[first + length] == words[length]:
            length += 1
        best = max(best, length)
    return best


def _span(words: Sequence[str], original: Sequence[str]) -> list[str]:
    """The shortest stretch of the original with these words in order, at most `_GAP` words apart; empty without one."""
    spans: list[list[str]] = []
    for first in [place for place, word in enumerate(original) if words and word == words[0]]:
        last = first
        for word in words[1:]:
            nearby = original[last + 1 : last + 2 + _GAP]
            if word not in nearby:
                break
            last += 1 + nearby.index(word)
        else:
            spans.append(list(original[first : last + 1]))
    return min(spans, key=len, default=[])

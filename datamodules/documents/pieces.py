"""Pieces of a text: as many whole sentences as fit, with an overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_BREAK = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*|\s*\n\s*")
_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> int:
    """The number of words and signs: tokens, without a tokenizer."""
    return sum(1 for _ in _WORD.finditer(text))


def pieces(text: str, *, tokens: int, overlap: int, count: Callable[[str], int] = words) -> Iterator[str]:
    """Cut a text into pieces of at most `tokens`, which begin and end with a sentence or line.

    A piece begins with the last sentences of the one before, of at most `overlap` tokens, where the next sentence fits
    behind them. A sentence of more than `tokens` is cut between words; a word is never cut. `count` is that of tokens.
    """
    spans = [part for span in _sentences(text) for part in _parts(text, span, tokens, count)]
    sizes = [count(text[start:end]) for start, end in spans]
    first = 0
    while first < len(spans):
        last, size = first + 1, sizes[first]
        while last < len(spans) and size + sizes[last] <= tokens:
            size += sizes[last]
            last += 1
        yield text[spans[first][0] : spans[last - 1][1]]
        if last == len(spans):
            return
        first, kept = last, 0
        room = min(overlap, tokens - sizes[last])
        while kept + sizes[first - 1] <= room:
            first -= 1
            kept += sizes[first]


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in [*_BREAK.finditer(text), None]:
        end = match.start() if match else len(text)
        if text[start:end].strip():
            yield start, end
        start = match.end() if match else end


def _parts(text: str, span: tuple[int, int], tokens: int, count: Callable[[str], int]) -> list[tuple[int, int]]:
    """The sentence, or its words where it is too long for a piece."""
    if count(text[slice(*span)]) <= tokens:
        return [span]
    return [match.span() for match in re.compile(r"\S+").finditer(text, *span)]

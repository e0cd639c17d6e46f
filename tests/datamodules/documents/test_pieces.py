"""Pieces of texts, in literal values."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.documents.pieces import pieces, words


@pytest.mark.parametrize(
    ("text", "tokens", "overlap", "expected"),
    [
        ("", 5, 2, []),
        (" \n ", 5, 2, []),
        ("One two. Three four. Five six.", 99, 9, ["One two. Three four. Five six."]),
        ("One two. Three four. Five six.", 6, 0, ["One two. Three four.", "Five six."]),
        ("One two. Three four. Five six.", 6, 3, ["One two. Three four.", "Three four. Five six."]),
        ("One. Two two two two. Three.", 6, 2, ["One.", "Two two two two.", "Three."]),  # no room for an overlap
        ("a b c d e", 2, 0, ["a b", "c d", "e"]),
        ("a b c d e", 3, 1, ["a b c", "c d e"]),
        ("- one\n- two\n\n- three", 4, 0, ["- one\n- two", "- three"]),
        ("他来了。她走了。", 2, 0, ["他来了。", "她走了。"]),
        ("Unbreakable", 0, 0, ["Unbreakable"]),
    ],
)
def test_a_text_is_cut_at_sentences(text: str, tokens: int, overlap: int, expected: list[str]) -> None:
    assert list(pieces(text, tokens=tokens, overlap=overlap)) == expected


@given(
    ends=st.lists(st.sampled_from([" ", ". ", "\n", "! ", "\n\n"]), max_size=20),
    tokens=st.integers(2, 9),
    overlap=st.integers(0, 8),
)
def test_nothing_is_lost_and_no_piece_is_too_long_or_within_another(ends: list[str], tokens: int, overlap: int) -> None:
    text = "".join(f"{number}{end}" for number, end in enumerate(ends))
    last = -1
    for piece in pieces(text, tokens=tokens, overlap=min(overlap, tokens - 1)):
        numbers = [int(number) for number in re.findall(r"\d+", piece)]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[0] <= last + 1 <= numbers[-1]
        assert words(piece) <= tokens
        last = numbers[-1]
    assert last == len(ends) - 1

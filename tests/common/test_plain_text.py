"""Text of models, datasets and servers, made visible before it reaches a terminal or a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.plain_text import one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("100%\rerror", r"100%\rerror"),
        ("a\x08\x7f", r"a\x08\x7f"),
        ("\u202egnp.exe\u202c", r"\u202egnp.exe\u202c"),
        ("\u2066a\u2069\u200f\u061c", r"\u2066a\u2069\u200f\u061c"),
        ("a\u2028b\x85c\x0bd\x0ce", r"a\u2028b\x85c\x0bd\x0ce"),
        ("\ud800", r"\ud800"),
        ("\ufeff\U000e0041", r"\ufeff\U000e0041"),
        ("café – 東京 \U0001f600 שלום\ttab\nline", "café – 東京 \U0001f600 שלום\ttab\nline"),
    ],
)
def test_what_acts_on_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(max_size=60))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    line = one_line(text)
    line.encode()
    assert line.splitlines() in ([line], [])
    assert not any(sign < " " or "\x7f" <= sign < "\xa0" for sign in line)
    assert visible(line) == line

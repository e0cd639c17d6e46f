"""Text as a judge or an oracle sees it, and as a terminal or a page may show it."""

from __future__ import annotations

import re

_TAG = re.compile(r"<[^<>\s]{1,40}>")
# Control characters but tab and line end, lone surrogates, and signs that are not seen but reorder or end lines.
_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def without_tags(text: str) -> str:
    """Text without tags, whoever wrote them, and with single spaces."""
    return " ".join(_TAG.sub(" ", text).split())


def visible(text: str) -> str:
    """Text in which every sign that would act on a terminal, or be hidden there, is an escape such as `\\x1b`."""
    return _ACTING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Visible text with single spaces and no line ends."""
    return " ".join(visible(text).split())


def encodable(text: str) -> str:
    """Text with a question mark in place of each lone surrogate, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()

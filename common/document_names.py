"""Comparison keys of ids and titles: both in Unicode NFC, titles also without case and outer quotes."""

from __future__ import annotations

import re
import unicodedata

_QUOTED_PHRASES = re.compile(r'"[^"\s](?:[^"]*[^"\s])?"[^"].*"', re.DOTALL)


def id_key(text: str) -> str:
    """An id without outer blanks, in Unicode NFC: `é` is one character or two, but one id."""
    return unicodedata.normalize("NFC", text.strip())


def title_key(text: str) -> str:
    """A title without case and outer quotes, with single blanks, in Unicode NFC."""
    title = " ".join(unicodedata.normalize("NFC", text).split())
    while (inner := unquoted(title).strip()) != title:
        title = inner
    return unicodedata.normalize("NFC", title.casefold())


def unquoted(title: str) -> str:
    """The title within one pair of double quotes, as dumps write it; else the title.

    Quotes of its own stay: `"Heroes" (album)`, and the four of `"Heroes" and "Low"`, whose outer two are no pair.
    """
    if len(title) < 2 or not title[0] == title[-1] == '"':
        return title
    if title.count('"') % 2 == 0 and _QUOTED_PHRASES.fullmatch(title):
        return title
    return title[1:-1]

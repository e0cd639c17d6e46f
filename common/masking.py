"""Secrets and control characters in text from elsewhere, before it is shown, logged or written."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

from common.plain_text import one_line

MASK = "***"
_PART = 6
_FOREIGN = re.compile(r"\bsk-[\w-]{6,}|(?<=://)[^\s/@]+(?=@)")  # keys and credentials that are not our own
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}  # unlike `lower`, keeps the length of any text


class Secrets:
    """Keys and passwords, found in a text also in parts, URL-encoded, in base64 or as hexadecimal digits.

    Args:
        values: the secrets; empty ones are left out.
    """

    def __init__(self, *values: str) -> None:
        self._forms = [form.translate(_LOWER) for value in values if value for form in _forms(value)]
        self._short = [re.compile(re.escape(value), re.IGNORECASE) for value in values if 3 <= len(value) < _PART]

    def without(self, text: str, *, part: int = _PART) -> str:
        """The text with every run of at least `part` characters of a secret masked; shorter values are not secrets."""
        known = {form[at : at + part] for form in self._forms for at in range(len(form) - part + 1)}
        lowered, kept, at = text.translate(_LOWER), [], 0
        while known and at <= len(text) - part:
            end = at
            while lowered[end : end + part] in known:
                end += 1
            if end > at:
                kept += [text[:at], MASK]
                text, lowered = text[end + part - 1 :], lowered[end + part - 1 :]
                at = 0
            else:
                at += 1
        return "".join([*kept, text])

    def shown(self, text: object, most: int = 300) -> str:
        """One line of at most about `most` characters: secrets masked, control characters escaped."""
        line = self.without(str(text))
        for pattern in (_FOREIGN, *self._short):
            line = pattern.sub(MASK, line)
        line = one_line(line)
        return line if len(line) <= most else f"{line[:most]}…"


def _forms(value: str) -> Iterator[str]:
    """The ways in which a secret is written."""
    yield from {value, quote(value, safe="", errors="replace"), unquote(value)}
    raw = value.encode("utf-8", "surrogatepass")
    yield raw.hex()
    for offset in range(3):  # base64 of a text around it has one of three alignments
        whole = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        if not offset:
            yield whole
        middle = whole[(offset * 8 + 5) // 6 : (offset + len(raw)) * 8 // 6]  # characters of its bytes alone
        yield from {middle, middle.replace("+", "-").replace("/", "_")}

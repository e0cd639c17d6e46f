"""Text of others on a page: cut, made printable, and shown with its figures. Escaping is the templates' work."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from evaluation.tables import MISSING

Row = dict[str, Any]

LONGEST = 1500  # characters of what was written in a step
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: object, longest: int = LONGEST) -> str:
    """A text without control characters and lone surrogates, cut with a note where it leaves out more than the note."""
    whole = str(text)
    note = f" … ({len(whole) - longest:,} more characters)"
    cut = len(whole) - longest > len(note)
    return _UNPRINTABLE.sub("�", whole[:longest] if cut else whole) + (note if cut else "")


@dataclass(frozen=True, slots=True)
class Chip:
    """A figure or verdict of a step: `tone` is good, bad, much or none, `strength` (0 to 1) how much of its colour."""

    text: str
    tone: str = ""
    strength: float = 1.0


def verdict(name: str, value: bool | None) -> Chip:
    """`true ✓`, `true ✗` or, where it is not known, `true –`."""
    if value is None:
        return Chip(f"{name} {MISSING}")
    return Chip(f"{name} {'✓' if value else '✗'}", "good" if value else "bad")


def number(name: str, value: float | None, *, scale: float = 1.0, signed: bool = False) -> Chip:
    """A figure whose colour is strongest at `scale` and beyond: good and bad are for those with a sign alone."""
    if value is None or not math.isfinite(value):
        return Chip(f"{name} {MISSING}")
    tone = ("good" if value > 0 else "bad") if signed else "much"
    tone = tone if value else ""
    return Chip(f"{name} {value:{'+' if signed else ''}.2f}", tone, round(min(1.0, abs(value) / scale), 2))

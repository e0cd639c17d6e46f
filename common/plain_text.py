"""Text as a judge or an oracle sees it."""

from __future__ import annotations

import re

_TAG = re.compile(r"<[^<>\s]{1,40}>")


def without_tags(text: str) -> str:
    """Text without tags, whoever wrote them, and with single spaces."""
    return " ".join(_TAG.sub(" ", text).split())

"""Rendering of passages for a policy: the wrapper shared by the released code of Search-R1, HiPRAG and ProRAG.

Also what compressors leave of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from envs.types import Hit


def render_hits(hits: Sequence[Hit], *, first: int = 1) -> str:
    """`Doc 1(Title: …) text` a line, best first, numbered from `first`; empty for no hits.

    Of a compressed passage what is shown of it, `Doc 1 …`; one that is not shown keeps its number and has no line.
    """
    return "".join(
        f"Doc {number}(Title: {hit.document.title}) {hit.document.text}\n"
        if hit.shown is None
        else f"Doc {number} {hit.shown}\n"
        for number, hit in enumerate(hits, start=first)
        if hit.shown != ""
    )


def shown_first(hits: Iterable[Hit], shown: Iterable[str]) -> list[Hit]:
    """Hits with what is shown of each, those of which nothing is shown at the end."""
    changed = [replace(hit, shown=text) for hit, text in zip(hits, shown, strict=True)]
    return sorted(changed, key=lambda hit: hit.shown == "")

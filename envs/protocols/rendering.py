"""Rendering of passages for a policy: the wrapper shared by the released code of Search-R1, HiPRAG and ProRAG."""

from __future__ import annotations

from collections.abc import Sequence

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

"""Rendering of passages for a policy: the wrapper shared by the released code of Search-R1, HiPRAG and ProRAG."""

from __future__ import annotations

from collections.abc import Sequence

from envs.types import Hit


def render_hits(hits: Sequence[Hit], *, first: int = 1) -> str:
    """`Doc 1(Title: …) text` a line, best first, numbered from `first`; empty for no hits."""
    return "".join(
        f"Doc {number}(Title: {hit.document.title}) {hit.document.text}\n"
        for number, hit in enumerate(hits, start=first)
    )

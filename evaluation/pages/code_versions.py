"""Versions of the code behind a page's rows: a first line where there are several, and which made what.

A version is the hash of the source that an arm's stages were made with; where results hold none, the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def opening(results: Row) -> str:
    """The first line of a page whose rows several versions of the code made; empty where one did."""
    count = len(_made(results["arms"])) or len(set(results["commits"]))
    if count < 2:
        return ""
    made = f"**{count} versions of the code made these rows**"
    return f"{made}, so compare with care: [which made what](#how-it-was-run)."


def sentence(results: Row) -> str:
    """A sentence that says which version of the code made which rows; empty where it is not known."""
    made = _made(results["arms"])
    if not made:
        return ""
    first, *others = sorted(made, key=lambda source: -sum(map(len, made[source].values())))
    if not others:
        return f"One version of the code ({first}) made all rows."
    rest = "; ".join(
        f"{source} made " + ", ".join(f"{name} (seed {', '.join(map(str, own))})" for name, own in made[source].items())
        for source in others
    )
    return f"By hash of the source, {first} made most rows; {rest}."


def _made(arms: Sequence[Row]) -> dict[str, dict[str, list[int]]]:
    """By version of the source, the seeds of each arm that it made."""
    made: dict[str, dict[str, list[int]]] = {}
    for arm in arms:
        for source in arm["sources"] or ():
            made.setdefault(source, {}).setdefault(arm["arm"], []).append(arm["seed"])
    return made

"""Choices of agents by number of hops: means of the counts that a protocol gives (`CountsChoices`). Pure."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from envs.types import Episode

KEPT, SHOWN = "passages/kept", "passages/shown"


@typing.runtime_checkable
class CountsChoices(typing.Protocol):
    """A protocol whose agents choose, between actions or among passages, and that counts what they chose."""

    def choices(self, episode: Episode) -> Mapping[str, int]:
        """Counts by name of a finished episode: the same names in the same order for every episode."""
        ...


def choices_by_hops(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of all rows of predictions with `choices`, and of those of each number of hops: `n` and the mean of each count.

    Choices that no row has are left out. `kept_share` is the share of the passages shown that were kept, of all
    questions
    of the group together, absent where none was shown. Rows without choices are left out; empty where all are.
    """
    known = [row for row in rows if row.get("choices")]
    names = [name for name in (known[0]["choices"] if known else ()) if any(row["choices"][name] for row in known)]
    groups = {"all": known} if known else {}
    for hops in sorted({row["hops"] for row in known if row["hops"] is not None}):
        groups[f"hops={hops}"] = [row for row in known if row["hops"] == hops]
    return {group: _means([row["choices"] for row in members], names) for group, members in groups.items()}


def _means(choices: Sequence[Mapping[str, int]], names: Sequence[str]) -> dict[str, float]:
    sums = {name: math.fsum(one[name] for one in choices) for name in names}
    means = {"n": float(len(choices))} | {name: round(total / len(choices), 4) for name, total in sums.items()}
    return means | ({"kept_share": round(sums[KEPT] / sums[SHOWN], 4)} if sums.get(SHOWN) else {})

"""Sums, means and counts over all ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")


def summed(tensor: Tensor) -> Tensor:
    """Sum of a tensor over all ranks, on the CPU, where ranks may wait for hours for the slowest to sample."""
    total = tensor.detach().cpu().clone()
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        distributed.all_reduce(total)
    return total


def means(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Means over all ranks, without NaN; a tag without any value has NaN."""
    known = [value_N.double()[value_N.double().isfinite()] for value_N in values.values()]
    totals = torch.tensor([[float(value_N.sum()), float(len(value_N))] for value_N in known])
    totals = summed(totals).tolist()
    return {name: total / count if count else math.nan for name, (total, count) in zip(values, totals, strict=True)}


def own_rank() -> int:
    """This process's place among the ranks."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def of_ranks(own: T) -> list[T]:
    """The values of all ranks, in their order; all ranks call it."""
    gathered: list[Any] = [own]
    if distributed.is_initialized():
        gathered = [None] * distributed.get_world_size()
        distributed.all_gather_object(gathered, own)
    return gathered


def counts_over_ranks(counts: Counter[str], alike: Mapping[str, Counter[str]] = MappingProxyType({})) -> Counter[str]:
    """Counts of all ranks together. Each rank has the names that it met, so they cannot be added up as a tensor.

    `alike` are those of the counts that several ranks may have, by what they were spent on: they count once.
    """
    if not distributed.is_initialized():
        return counts
    return without_repeats(of_ranks((counts, dict(alike))))


def without_repeats(counted: Sequence[tuple[Counter[str], Mapping[str, Counter[str]]]]) -> Counter[str]:
    """The sum of ranks' counts, where what has one key in several ranks counts once."""
    total: Counter[str] = sum((counts for counts, _ in counted), Counter())
    seen: set[str] = set()
    for _, alike in counted:
        for key, spent in alike.items():
            if key in seen:
                total.subtract(spent)
            seen.add(key)
    return total

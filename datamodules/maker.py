"""What the `data` of a stage without a module is: it makes records."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

Item = typing.TypeVar("Item")


class Maker(typing.Protocol):
    """Writes the records of a stage, `folder/data/*.jsonl` for the most part.

    With the same settings, inputs and seed it writes the same bytes, however often it was killed on the way.
    """

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Make this rank's share of the work, under `folder/data`.

        Each unit of work is written once, whole and atomically (`common.files.atomic_write`). A killed run calls this
        again on the folder it left: units that are there stay, the others are made. Ranks take different times here,
        so nothing in it may wait for another rank.
        """
        ...

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the shares, on rank 0 alone and after all ranks; returns the stage's headline metrics."""
        ...


def units(folder: Path, items: Iterable[Item], size: int) -> Iterator[tuple[Path, list[Item]]]:
    """Items cut into units of work, each with the file that it becomes: `folder/00000.jsonl` and so on."""
    rest, number = iter(items), 0
    while unit := list(islice(rest, size)):
        yield folder / f"{number:05d}.jsonl", unit
        number += 1


def missing(units: Iterable[tuple[Path, Item]], *, rank: int, world_size: int) -> Iterator[tuple[Path, Item]]:
    """The units that this rank has to make: they are dealt out in turn, and those that are there stay."""
    for number, (path, unit) in enumerate(units):
        if number % world_size == rank and not path.exists():
            yield path, unit

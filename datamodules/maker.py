"""The `data` of a stage without a module: a maker of records."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

Item = typing.TypeVar("Item")


class Maker(typing.Protocol):
    """Writes the records of a stage, mostly `folder/data/*.jsonl`.

    The same settings, inputs and seed give the same bytes, however often the process was killed meanwhile.
    """

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Make this rank's share of the work, under `folder/data`.

        Each unit of work is written once and atomically (`common.files.atomic_write`). After a kill this is called
        again on the same folder: units that exist stay, the others are made. Ranks take different times here, so no
        collective call is allowed.
        """
        ...

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the shares, on rank 0 alone after all ranks are done; returns the stage's headline metrics."""
        ...


def units(folder: Path, items: Iterable[Item], size: int) -> Iterator[tuple[Path, list[Item]]]:
    """Items cut into units of work, each with its file: `folder/00000.jsonl` and so on."""
    rest, number = iter(items), 0
    while unit := list(islice(rest, size)):
        yield folder / f"{number:05d}.jsonl", unit
        number += 1


def missing(units: Iterable[tuple[Path, Item]], *, rank: int, world_size: int) -> Iterator[tuple[Path, Item]]:
    """The units that this rank has to make: every `world_size`-th one, less those that exist."""
    for number, (path, unit) in enumerate(units):
        if number % world_size == rank and not path.exists():
            yield path, unit

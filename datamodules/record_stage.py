"""Record stages: the `data` of a stage without a module, which writes records; and how its units of work are shared."""

from __future__ import annotations

import json
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import Any

from common.costs import tokens_in
from common.files import write_json
from common.progress import current
from datamodules.records import read_rows, write_rows

Item = typing.TypeVar("Item")


class RecordStage(typing.Protocol):
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


@dataclass(frozen=True, slots=True)
class _Units(typing.Generic[Item]):
    folder: Path
    items: Iterable[Item]
    size: int
    count: int

    def __iter__(self) -> Iterator[tuple[Path, list[Item]]]:
        rest, number = iter(self.items), 0
        while unit := list(islice(rest, self.size)):
            yield self.folder / f"{number:05d}.jsonl", unit
            number += 1

    def __length_hint__(self) -> int:
        return -(-self.count // self.size)


def units(
    folder: Path, items: Iterable[Item], size: int, *, count: int | None = None
) -> Iterable[tuple[Path, list[Item]]]:
    """Items cut into units of work, each with its file: `folder/00000.jsonl` and so on.

    `count`, of items that are streamed, is for the time left alone.
    """
    return _Units(folder, items, size, length_hint(items) if count is None else count)


def missing(units: Iterable[tuple[Path, Item]], *, rank: int, world_size: int) -> Iterator[tuple[Path, Item]]:
    """The units that this rank has to make: every `world_size`-th one, less those that exist."""
    return affordable(units, rank=rank, world_size=world_size, max_tokens=None)


def affordable(
    units: Iterable[tuple[Path, Item]], *, rank: int, world_size: int, max_tokens: int | None
) -> Iterator[tuple[Path, Item]]:
    """The same as `missing`, until this rank has sampled its equal share of `max_tokens` in units, old and new.

    Whole units, so a rank goes beyond its share by less than one. Every unit must have its `unit_counts`.
    """
    spent, total = 0, length_hint(units)
    for number, (path, unit) in enumerate(units):
        if max_tokens is not None and spent * world_size >= max_tokens:
            return
        if number % world_size == rank:
            if not path.exists():
                current().begin_unit("unit", number, total)
                yield path, unit
                current().end_unit()
            if max_tokens is not None:
                spent += tokens_in(unit_counts(path))
                current().reach(min(1.0, spent * world_size / max_tokens))


def join_units(folder: Path, name: str, schema: str) -> list[Path]:
    """Write the rows of the units that there are to `folder/data/name`; returns the units' files.

    These are all, unless `affordable` ended the work.
    """
    paths = sorted((folder / "data" / "units").glob("*.jsonl"))
    write_rows(folder / "data" / name, (row for path in paths for row in read_rows(path, schema)))
    return paths


def summed(paths: Iterable[Path]) -> tuple[Counter[str], Counter[str]]:
    """Sums over units of what `write_counts` wrote beside them: the counts, and the numbers of the summaries."""
    counts, total = Counter[str](), Counter[str]()
    for path in paths:
        summary = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        counts.update(summary.pop("counts"))
        total.update(summary)
    return counts, total


def write_counts(path: Path, counts: Mapping[str, int], **summary: Any) -> None:
    """Write what components counted while a unit was made, before the unit itself, beside it."""
    write_json(path.with_suffix(".json"), summary | {"counts": dict(sorted(counts.items()))})


def unit_counts(path: Path) -> Counter[str]:
    """The counts that `write_counts` wrote."""
    return Counter(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["counts"])

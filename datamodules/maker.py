"""What the `data` of a stage without a module is: it makes records."""

from __future__ import annotations

import typing
from pathlib import Path


class Maker(typing.Protocol):
    """Writes the records of a stage, `folder/data/*.jsonl` for the most part.

    With the same settings, inputs and seed it writes the same bytes, however often it was killed on the way.
    """

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Make this rank's share of the work, under `folder/data`.

        Each unit of work is written once, whole and atomically (`envs.files.atomic_write`). A killed run calls this
        again on the folder it left: units that are there stay, the others are made. Ranks take different times here,
        so nothing in it may wait for another rank.
        """
        ...

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the shares, on rank 0 alone and after all ranks; returns the stage's headline metrics."""
        ...

"""A maker's stage made by one process or by several, and its files."""

from __future__ import annotations

from pathlib import Path

from datamodules.maker import Maker


def run(maker: Maker, folder: Path, *, world_size: int = 1, seed: int = 0) -> dict[str, float]:
    """The headline of a stage of so many ranks, the last of which works first."""
    for rank in reversed(range(world_size)):
        maker.make(folder, seed=seed, rank=rank, world_size=world_size)
    return maker.merge(folder, seed=seed, world_size=world_size)


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds, by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

"""A record stage made by one process or by several, whole or in two lives, and its files."""

from __future__ import annotations

from pathlib import Path

from datamodules.record_stage import RecordStage


def run(maker: RecordStage, folder: Path, *, world_size: int = 1, seed: int = 0) -> dict[str, float]:
    """The headline of a stage of so many ranks, the last of which works first."""
    for rank in reversed(range(world_size)):
        maker.make(folder, seed=seed, rank=rank, world_size=world_size)
    return maker.merge(folder, seed=seed, world_size=world_size)


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds, by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_shares_and_resumes(maker: RecordStage, folder: Path, seed: int = 0) -> None:
    """Two ranks make the bytes of one; after a kill between a unit's two files that unit alone is made anew."""
    run(maker, folder / "one", seed=seed)
    run(maker, folder / "two", seed=seed, world_size=2)
    assert files(folder / "one") == files(folder / "two")
    units = sorted((folder / "two" / "data" / "units").rglob("*.json*"))
    [lost] = [path for path in units if path.name == "00001.jsonl"]
    lost.unlink()
    kept = {path: path.stat().st_mtime_ns for path in units if path.stem != lost.stem}
    assert kept
    run(maker, folder / "two", seed=seed)
    assert files(folder / "one") == files(folder / "two")
    assert kept == {path: path.stat().st_mtime_ns for path in kept}

from __future__ import annotations

from pathlib import Path

from datamodules.maker import missing, units


def test_items_are_cut_into_numbered_units(tmp_path: Path) -> None:
    cut = list(units(tmp_path, iter("abcde"), 2))
    assert [(path.name, unit) for path, unit in cut] == [
        ("00000.jsonl", ["a", "b"]),
        ("00001.jsonl", ["c", "d"]),
        ("00002.jsonl", ["e"]),
    ]
    assert list(units(tmp_path, (), 2)) == []


def test_ranks_share_the_units_and_leave_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "00002.jsonl").touch()
    share = [
        [path.stem for path, _ in missing(units(tmp_path, range(5), 1), rank=rank, world_size=2)] for rank in (0, 1)
    ]
    assert share == [["00000", "00004"], ["00001", "00003"]]

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.errors import DataError
from envs.retrievers.watched_file import WatchedFile


def test_a_change_right_after_opening_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for round_ in range(20):
        path.write_bytes(b"aaaa")
        file = WatchedFile(path, "corpus")
        digest = file.digest()
        with open(path, "r+b") as other:
            other.write(b"bbbb")
        with pytest.raises(DataError, match=r"corpus .*file was changed while it was in use: put it back as it was"):
            file.check(digest, file.digest)
        assert file.read(1, 3) == b"bb", round_


def test_the_bytes_are_hashed_only_where_the_stamp_is_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"aaaa")
    file, hashed = WatchedFile(path, "corpus"), []
    expected = file.digest()

    def digest() -> str:
        hashed.append(1)
        return file.digest()

    def check(times: int) -> None:
        for _ in range(3):
            file.check(expected, digest)
        assert len(hashed) == times

    check(0)
    os.utime(path, ns=(1, 1))
    check(1)
    path.rename(tmp_path / "moved")
    path.write_bytes(b"bbbb")  # another file at the same place
    check(2)
    assert file.read(0, 4) == b"aaaa"
    with open(tmp_path / "moved", "ab") as other:
        other.write(b"b")
    for _ in range(3):
        with pytest.raises(DataError, match="was changed"):
            file.check(expected, digest)
    assert len(hashed) == 3


def test_lines_are_those_of_the_file_that_was_opened_for_readers_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "file"
    lines = [b"%d\n" % number for number in range(100_000)]
    path.write_bytes(b"".join(lines))
    file = WatchedFile(path, "corpus")
    path.unlink()
    for one, other, line in zip(file.lines(), file.lines(), lines, strict=True):
        assert one == other == line


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"index .*: Is a directory"):
        WatchedFile(tmp_path, "index")

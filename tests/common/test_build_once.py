from __future__ import annotations

import multiprocessing
import time

import pytest

from common.files import build_once


def note(folder):
    """A slow build that tells its process in two files, with a pause between them."""
    with open(folder.parent / "log", "a") as log:
        log.write("built\n")
    (folder / "a").write_text("1")
    time.sleep(0.3)
    (folder / "b").write_text("2")


def build_and_read(folder):
    return sorted(path.name for path in build_once(folder, note).iterdir())


def test_several_processes_build_once_and_see_the_whole(tmp_path):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        seen = pool.map(build_and_read, [tmp_path / "index"] * 3, chunksize=1)
    assert seen == [["a", "b"]] * 3
    assert (tmp_path / "log").read_text() == "built\n"


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build_once(tmp_path / "index", fail)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_what_a_killed_build_left_is_not_mixed_in(tmp_path):
    left = tmp_path / ".index.tmp"
    left.mkdir()
    (left / "half").write_text("")
    assert build_and_read(tmp_path / "index") == ["a", "b"]
    assert not left.exists()

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import pytest

from common.errors import DataError
from envs.retrievers.index_folder import IndexFolder


def build(folder: Path) -> None:
    with open(folder.parent / "log", "a") as log:
        log.write("built\n")
    (folder / "vectors").write_text("1 2 3")


def opened(path: Path) -> str:
    return (IndexFolder(path, build).path / "vectors").read_text()


def test_several_processes_build_a_damaged_folder_again_once(tmp_path: Path) -> None:
    path = tmp_path / "index"
    assert opened(path) == "1 2 3"
    (path / "vectors").write_text("1 2 4")
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(opened, [path] * 3, chunksize=1) == ["1 2 3"] * 3
    assert (tmp_path / "log").read_text() == "built\n" * 2


@pytest.mark.parametrize("sums", ["{}", "[]", '"vectors"', "{", "", '{"vectors": 3}', '{"others": "00"}'])
def test_checksums_that_say_nothing_are_damage(tmp_path: Path, sums: str) -> None:
    path = tmp_path / "index"
    IndexFolder(path, build)
    (path / "checksums.json").write_text(sums)
    with pytest.raises(DataError, match=r"index .*index is damaged: .*; remove this folder, and it is built again"):
        IndexFolder(path, build, costly=True)
    assert opened(path) == "1 2 3"
    shutil.rmtree(path)
    assert opened(path) == "1 2 3"


def test_a_folder_may_be_removed_while_it_is_used_but_not_changed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "index"
    folder = IndexFolder(path, build)
    shutil.rmtree(path)
    folder.check()
    folder = IndexFolder(path, build)
    with open(path / "vectors", "r+") as file:
        file.write("9")
    with pytest.raises(DataError, match=r"index .*vectors was changed while it was in use"):
        folder.check()

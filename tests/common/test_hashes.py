"""Hashes of files: read once while the file stays, and again after every way of changing it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from common.hashes import FileHashes

# sha256 of these two words
FIRST = "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e"
OTHER = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"


def write_back(file: Path) -> None:
    """Another text of the same size, with the time of the first."""
    status = file.stat()
    file.write_text("other")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(file: Path) -> None:
    """Another file of the same size and time."""
    other = file.with_name("other")
    other.write_text("other")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)


def link(file: Path) -> None:
    """Another file behind the same name."""
    other = file.with_name("other")
    other.write_text("other")
    file.unlink()
    file.symlink_to(other)


@pytest.mark.parametrize("change", [write_back, replace, link])
@pytest.mark.parametrize("kept", [True, False])
def test_a_changed_file_is_read_again_whatever_its_size_and_time(
    tmp_path: Path, change: Callable[[Path], None], kept: bool
) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text("first")
    hashes = FileHashes(tmp_path / "memory.json")
    assert hashes.of(file) == FIRST
    hashes.save()
    change(file)  # within the same tick of the clock, if that were possible
    later = hashes if kept else FileHashes(tmp_path / "memory.json")
    assert later.of(file) == OTHER
    later.save()
    assert OTHER in (tmp_path / "memory.json").read_text()


def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, memory = tmp_path / "corpus.jsonl", tmp_path / "memory.json"
    file.write_text("first")
    hashes = FileHashes(memory)
    hashes.of(file)
    hashes.save()
    monkeypatch.setattr("hashlib.file_digest", None)
    assert hashes.of(file) == FIRST
    assert FileHashes(memory).of(file) == FIRST
    with pytest.raises(TypeError):
        FileHashes(memory).of(file, reread=True)


def test_two_runs_at_once_keep_each_other_s_hashes(tmp_path: Path) -> None:
    names = ("a", "b")
    runs = [FileHashes(tmp_path / "memory.json") for _ in names]
    for name, run in zip(names, runs, strict=True):
        (tmp_path / name).write_text("first")
        run.of(tmp_path / name)
    for run in runs:
        run.save()
    assert sorted(json.loads((tmp_path / "memory.json").read_text())) == [str(tmp_path / name) for name in names]


@pytest.mark.parametrize("entry", [[0, 0, 0, 0, 3], [0, 0, 0, FIRST], [0, 0, 0, 0, "x"], ["0", 0, 0, 0, FIRST], {}])
def test_a_damaged_entry_is_forgotten(tmp_path: Path, entry: object) -> None:
    (tmp_path / "a").write_text("first")
    (tmp_path / "memory.json").write_text(json.dumps({str(tmp_path / "a"): entry, "b": [1, 2, 3, 4, OTHER]}))
    hashes = FileHashes(tmp_path / "memory.json")
    assert hashes.of(tmp_path / "a") == FIRST
    hashes.save()
    assert json.loads((tmp_path / "memory.json").read_text())["b"] == [1, 2, 3, 4, OTHER]

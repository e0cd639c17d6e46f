"""Files and folders that are written atomically: either complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from common.errors import DataError

_temporary: set[Path] = set()  # what this process has begun to write


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """A temporary file or folder, removed after the block, or by `remove_temporary` where the process ends in it."""
    _temporary.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _temporary.discard(path)


def remove_temporary() -> None:
    """Remove the temporary files of this process before it exits inside their blocks; raises nothing."""
    for path in list(_temporary):
        with suppress(OSError):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path | str, mode: str = "w") -> Iterator[IO]:
    """Open a temporary file beside `path`; sync it and rename it to `path`, or remove it if the block raises."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary(path.with_name(f".{path.name}.{os.getpid()}.tmp")) as half:
        with open(half, mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "\n") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(half, path)
        _sync(path.parent)


def write_json(path: Path | str, value: Any) -> None:
    """Write a value as indented JSON.

    Raises:
        DataError: a number is NaN or infinite.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise DataError(f"{path} is not written: a number in it is infinite or NaN") from error
    with atomic_write(path) as f:
        f.write(text + "\n")


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`; if it is absent, `build` fills a temporary folder, which is synced and renamed to it.

    Among several processes the first builds and the others wait. Leftovers of a killed build are removed by the next.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            with temporary(folder.with_name(f".{folder.name}.tmp")) as half:
                shutil.rmtree(half, ignore_errors=True)
                half.mkdir()
                build(half)
                sync_folder(half)
                os.replace(half, folder)
                _sync(folder.parent)
    return folder


def sync_folder(folder: Path) -> None:
    """Flush all files in a folder, and its own and its folders' entries, to the disk."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Files and folders that are written atomically: either complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock


@contextmanager
def atomic_write(path: Path | str, mode: str = "w") -> Iterator[IO]:
    """Open a temporary file beside `path`; sync it and rename it to `path`, or remove it if the block raises."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(
            temporary, mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "\n"
        ) as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path | str, value: Any) -> None:
    """Write a value as indented JSON.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    with atomic_write(path) as f:
        json.dump(value, f, indent=2, ensure_ascii=False, allow_nan=False)
        f.write("\n")


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`; if it is absent, `build` fills a temporary folder, which is synced and renamed to it.

    Among several processes the first builds and the others wait. Leftovers of a killed build are removed by the next.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.tmp")
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            try:
                build(temporary)
                sync_folder(temporary)
                os.replace(temporary, folder)
                _sync(folder.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
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

"""Files and folders that are either whole or absent."""

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
    """Open a file beside `path`; when the block ends well, sync it and rename it to `path`, else remove it."""
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
    """Write a value as readable JSON; NaN is refused.

    Raises:
        ValueError: a number is not finite.
    """
    with atomic_write(path) as f:
        json.dump(value, f, indent=2, ensure_ascii=False, allow_nan=False)
        f.write("\n")


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`; where it is absent, `build` fills a folder beside it that is synced and then renamed to it.

    Of several processes one builds while the others wait. What a killed build left is removed by the next.
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
                for path in (*temporary.rglob("*"), temporary):
                    _sync(path)
                os.replace(temporary, folder)
                _sync(folder.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

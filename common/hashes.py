"""Hashes: of plain settings, and of files, remembered while a file's size, times and inode stay as they were."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.files import atomic_write

_TICK = 20_000_000  # nanoseconds; clocks of file systems go on at least this often


def short_digest(settings: object) -> str:
    """24 hexadecimal digits for plain settings, the same for equal ones in the same order."""
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=12).hexdigest()


class FileHashes:
    """sha256 of files; `memory` is a JSON file that keeps them from one run to the next."""

    def __init__(self, memory: Path | None = None) -> None:
        self._memory = memory
        self._known = _read(memory)
        self._new: dict[str, list[Any]] = {}

    def of(self, path: Path, *, reread: bool = False) -> str:
        """sha256 of a file's content: remembered where its stamp is unchanged, unless `reread`.

        Two changes within a tick of the clock leave the same times, so a file just written is read a tick later.
        """
        name, seen = str(path.resolve()), stamp(path)
        *before, known = self._known.get(name, [""])
        if reread or before != seen:
            age = time.time_ns() - seen[2]
            if 0 <= age < _TICK:
                time.sleep((_TICK - age) / 1e9)
            with open(path, "rb") as f:
                known = hashlib.file_digest(f, "sha256").hexdigest()
            self._known[name] = self._new[name] = [*seen, known]
        return known

    def save(self) -> None:
        """Add new hashes to the memory file, and keep those that other processes have added."""
        if self._memory is not None and self._new:
            with atomic_write(self._memory) as f:
                json.dump(_read(self._memory) | self._new, f, indent=0, sort_keys=True)
            self._new = {}


def stamp(path: Path) -> list[int]:
    """Size, mtime, ctime and inode: at least one differs once a file is changed or replaced."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def visible_files(folder: Path) -> Iterator[Path]:
    """All files of a folder and those below, but hidden ones."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from visible_files(path)
        elif path.is_file():
            yield path


def _read(memory: Path | None) -> dict[str, list[Any]]:
    """The remembered hashes, less damaged ones: they can be computed again."""
    try:
        known = json.loads(memory.read_text(encoding="utf-8")) if memory else {}
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {name: entry for name, entry in known.items() if _whole(entry)}


def _whole(entry: object) -> bool:
    return isinstance(entry, list) and list(map(type, entry)) == [int] * 4 + [str] and len(entry[-1]) == 64

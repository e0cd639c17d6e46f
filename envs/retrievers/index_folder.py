"""Folders that are built once for an index, with the checksums of their files, which are compared at every start."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from common.errors import DataError
from common.files import build_once
from envs.retrievers.watched_file import WatchedFile

log = logging.getLogger(__name__)

_CHECKSUMS = "checksums.json"


class IndexFolder:
    """A folder that `build` fills once; its files are watched while they are used.

    A damaged folder is built again, and the log says so; a `costly` one is an error, for the user to decide.

    Raises:
        DataError: the folder is damaged and `costly`.
    """

    def __init__(self, path: Path, build: Callable[[Path], None], *, costly: bool = False) -> None:
        def store(folder: Path) -> None:
            build(folder)
            sums = {file.name: _digest(file) for file in sorted(folder.iterdir())}
            (folder / _CHECKSUMS).write_text(json.dumps(sums))

        self.path = build_once(path, store)
        if damage := _damage(path):
            if costly:
                raise DataError(f"index {path} is damaged: {damage}; remove this folder, and it is built again")
            with FileLock(path.with_name(f".{path.name}.check.lock")):
                if damage := _damage(path):  # no other process has built it again meanwhile
                    log.warning("%s is damaged (%s): it is built again", path, damage)
                    shutil.rmtree(path)
                    build_once(path, store)
        self._files = [(WatchedFile(path / name, "index"), digest) for name, digest in _checksums(path).items()]

    def check(self) -> None:
        """Check that no file has changed.

        Raises:
            DataError: one has.
        """
        for file, digest in self._files:
            file.check(digest, file.digest)


def _checksums(folder: Path) -> dict[str, str]:
    sums: Any = json.loads((folder / _CHECKSUMS).read_bytes())
    if not sums or not isinstance(sums, dict):
        raise ValueError("no checksums")
    return sums


def _damage(folder: Path) -> str:
    """Damage of a folder; empty where there is none."""
    try:
        sums = _checksums(folder)
    except (OSError, ValueError):
        return f"{_CHECKSUMS} is missing or cannot be read"
    for name, expected in sums.items():
        try:
            same = _digest(folder / name) == expected
        except OSError:
            return f"{name} cannot be read"
        if not same:
            return f"{name} is not as it was written"
    return ""


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

"""Replies of a paid model, kept on disk, and what they cost.

SQLite in WAL mode: several processes may share a file, and a reply is whole or absent. WAL needs a local disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock

from envs.errors import DataError

_SCHEMA = "create table if not exists replies (key text primary key, reply text, tokens integer) without rowid"


class Replies:
    """Reply texts by key. A reply and its cost are kept in one step, so nothing that was paid for is forgotten.

    A connection lives for one call, so an instance may be used from any thread.

    Raises:
        DataError: the file is no such store, or cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"), self._open() as db:  # two connections cannot switch to WAL at once
            db.execute("pragma journal_mode=wal")
            db.execute(_SCHEMA)

    def get(self, key: str) -> str | None:
        with self._open() as db:
            row = db.execute("select reply from replies where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def put(self, key: str, reply: str, tokens: int) -> None:
        with self._open() as db:
            db.execute("insert or replace into replies values (?, ?, ?)", (key, reply, tokens))

    def spent(self) -> tuple[int, int]:
        """Replies and tokens paid for so far, by whoever shares the file."""
        with self._open() as db:
            return db.execute("select count(*), coalesce(sum(tokens), 0) from replies").fetchone()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as db, db:
                yield db
        except sqlite3.Error as error:
            raise DataError(f"replies {self.path}: {error}; delete the file or name another") from error

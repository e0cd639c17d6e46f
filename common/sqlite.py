"""A small SQLite file that several processes share: a row is whole or absent. WAL needs a local disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock

from common.errors import DataError


class SharedStore:
    """A database file with its tables. A connection lives for one call, so any thread or fork may use an instance.

    Args:
        path: the file; made where there is none.
        what: what an error calls it.
        schema: statements that make the tables where they are missing.

    Raises:
        DataError: the file is no such store, or cannot be read or written.
    """

    def __init__(self, path: str | Path, what: str, schema: str) -> None:
        self.path, self._what = Path(path), what
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite does not wait for its turn when two connections switch a new file to WAL at once: one of them fails.
        with FileLock(f"{self.path}.lock"), self.opened() as db:
            db.execute("pragma journal_mode=wal")
            db.executescript(schema)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as db, db:
                yield db
        except sqlite3.Error as error:
            raise DataError(f"{self._what} {self.path}: {error}; delete the file or name another") from error

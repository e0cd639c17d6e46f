"""A small SQLite database that several processes share. It uses WAL, which needs a local disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock

from common.errors import DataError


class SharedStore:
    """A database file with its tables. Each call opens its own connection, so threads and forks may share an instance.

    Args:
        path: the file; created if it does not exist.
        what: its name in error messages.
        schema: statements that create the tables if they do not exist.

    Raises:
        DataError: the file is not such a database, or cannot be read or written.
    """

    def __init__(self, path: str | Path, what: str, schema: str) -> None:
        self.path, self._what = Path(path), what
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite does not wait where two connections switch a new file to WAL at once: one of them fails.
            with FileLock(f"{self.path}.lock"), self.opened() as db:
                db.execute("pragma journal_mode=wal")
                db.executescript(schema)
        except OSError as error:
            raise DataError(f"{what} {self.path}: {error}; name a file that can be written") from error

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as db, db:
                yield db
        except sqlite3.OperationalError as error:  # locked, read-only, on a full disk: what it holds is whole
            raise DataError(
                f"{self._what} {self.path}: {error}; what it holds is kept, fix that and run again"
            ) from error
        except sqlite3.Error as error:
            raise DataError(
                f"{self._what} {self.path}: {error}; name another file, or move this one and its -wal file aside: "
                "`sqlite3 MOVED .recover` (or .dump) prints what can be saved"
            ) from error

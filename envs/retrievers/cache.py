"""Answers of a search backend, kept on disk.

SQLite in WAL mode: several processes may share a file, and a row is whole or absent. WAL needs a local disk; network
file systems do not support it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple
from pathlib import Path

from filelock import FileLock

from envs.errors import DataError
from envs.types import Document, Hit

_SCHEMA = """
create table if not exists answers (
    backend text, k integer, query text, hits text not null, primary key (backend, k, query)
) without rowid;
create table if not exists backends (url text primary key, backend text not null) without rowid;
"""


class QueryCache:
    """Hits by (backend, k, query), and which backend was last seen behind a URL.

    A connection lives for one call, so an instance may be used from any thread and survives a fork.

    Raises:
        DataError: the file is not a cache, or cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite does not wait for its turn when two connections switch a new file to WAL at once: one of them fails.
        with FileLock(f"{self.path}.lock"), self._open() as db:
            db.execute("pragma journal_mode=wal")
            db.executescript(_SCHEMA)

    def get(self, backend: str, k: int, queries: Iterable[str]) -> dict[str, list[Hit]]:
        """The known ones among `queries`."""
        with self._open() as db:
            select = "select hits from answers where backend = ? and k = ? and query = ?"
            rows = ((query, db.execute(select, (backend, k, query)).fetchone()) for query in queries)
            return {query: _hits(row[0]) for query, row in rows if row}

    def put(self, backend: str, k: int, answers: Mapping[str, Sequence[Hit]]) -> None:
        """Keep what `backend` answers; all of it or, when interrupted, nothing."""
        with self._open() as db:
            rows = [(backend, k, query, json.dumps([_row(hit) for hit in hits])) for query, hits in answers.items()]
            db.executemany("insert or replace into answers values (?, ?, ?, ?)", rows)

    def backend(self, url: str) -> str | None:
        """The backend last seen behind `url`."""
        with self._open() as db:
            row = db.execute("select backend from backends where url = ?", (url,)).fetchone()
        return row[0] if row else None

    def remember(self, url: str, backend: str) -> None:
        """Note which backend is behind `url`."""
        with self._open() as db:
            db.execute("insert or replace into backends values (?, ?)", (url, backend))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as db, db:
                yield db
        except sqlite3.Error as error:
            raise DataError(f"query cache {self.path}: {error}; delete the file or name another") from error


def _row(hit: Hit) -> list[str | float | None]:
    return [*astuple(hit.document), hit.score]


def _hits(text: str) -> list[Hit]:
    return [Hit(Document(id, title, body), score) for id, title, body, score in json.loads(text)]

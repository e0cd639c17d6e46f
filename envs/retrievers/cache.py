"""A cache on disk for the answers of a search backend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from common.sqlite import SharedStore
from envs.types import Document, Hit

_SCHEMA = """
create table if not exists answers (
    backend text, k integer, query text, hits text not null, primary key (backend, k, query)
) without rowid;
create table if not exists backends (url text primary key, backend text not null) without rowid;
"""


class QueryCache(SharedStore):
    """Hits by (backend, k, query), and which backend was last seen behind a URL.

    Raises:
        DataError: the file is not such a cache, or cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, "query cache", _SCHEMA)

    def get(self, backend: str, k: int, queries: Iterable[str]) -> dict[str, list[Hit]]:
        """The cached hits of those `queries` that are cached."""
        with self.opened() as db:
            select = "select hits from answers where backend = ? and k = ? and query = ?"
            rows = ((query, db.execute(select, (backend, k, query)).fetchone()) for query in queries)
            return {query: _hits(row[0]) for query, row in rows if row}

    def put(self, backend: str, k: int, answers: Mapping[str, Sequence[Hit]]) -> None:
        """Store answers of `backend`; all of them or, when interrupted, none."""
        with self.opened() as db:
            rows = [(backend, k, query, json.dumps([_row(hit) for hit in hits])) for query, hits in answers.items()]
            db.executemany("insert or replace into answers values (?, ?, ?, ?)", rows)

    def backend(self, url: str) -> str | None:
        """The backend last seen behind `url`."""
        with self.opened() as db:
            row = db.execute("select backend from backends where url = ?", (url,)).fetchone()
        return row[0] if row else None

    def remember(self, url: str, backend: str) -> None:
        """Store which backend is behind `url`."""
        with self.opened() as db:
            db.execute("insert or replace into backends values (?, ?)", (url, backend))


def _row(hit: Hit) -> list[str | float | None]:
    return [*astuple(hit.document), hit.score]


def _hits(text: str) -> list[Hit]:
    return [Hit(Document(id, title, body), score) for id, title, body, score in json.loads(text)]

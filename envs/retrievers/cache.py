"""A cache on disk for the answers of a search backend."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from common.sqlite import SharedStore
from envs.types import Document, Hit

log = logging.getLogger(__name__)

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
        """The cached hits of those `queries` that are cached; a damaged answer is not, and the log says so."""
        with self.opened() as db:
            select = "select cast(hits as blob) from answers where backend = ? and k = ? and query = ?"
            rows = ((query, db.execute(select, (backend, k, query)).fetchone()) for query in queries)
            stored: dict[str, bytes] = {query: row[0] for query, row in rows if row}
        known = {query: text for query, text in stored.items() if text[:8] == _checksum(backend, k, query, text[8:])}
        if damaged := len(stored) - len(known):
            log.warning("query cache %s: %d damaged answers are not used: they are requested again", self.path, damaged)
        return {query: _hits(text[8:]) for query, text in known.items()}

    def put(self, backend: str, k: int, answers: Mapping[str, Sequence[Hit]]) -> None:
        """Store answers of `backend`; all of them or, when interrupted, none."""
        with self.opened() as db:
            texts = {query: json.dumps([_row(hit) for hit in hits]) for query, hits in answers.items()}
            rows = [
                (backend, k, query, _checksum(backend, k, query, text.encode()).decode() + text)
                for query, text in texts.items()
            ]
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


def _checksum(backend: str, k: int, query: str, text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text, zlib.crc32(json.dumps([backend, k, query]).encode()))


def _hits(text: bytes) -> list[Hit]:
    return [Hit(Document(id, title, body), score) for id, title, body, score in json.loads(text)]

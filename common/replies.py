"""Replies of a paid model and their cost in tokens, cached on disk."""

from __future__ import annotations

from pathlib import Path

from common.sqlite import SharedStore

_SCHEMA = """
    create table if not exists replies (key text primary key, reply text, tokens integer) without rowid;
    create index if not exists costs on replies (tokens);
"""


class Replies(SharedStore):
    """Reply texts by key. A reply and its cost are written in one transaction, so no paid reply is lost.

    Raises:
        DataError: the file is not such a database, or cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, "replies", _SCHEMA)

    def get(self, key: str) -> str | None:
        """The reply of a key; None if it is not cached."""
        with self.opened() as db:
            row = db.execute("select reply from replies where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def put(self, key: str, reply: str, tokens: int) -> None:
        """Store a reply and its cost in tokens."""
        with self.opened() as db:
            db.execute("insert or replace into replies values (?, ?, ?)", (key, reply, tokens))

    def spent(self) -> tuple[int, int]:
        """Replies and tokens paid for so far, by all processes that share the file."""
        with self.opened() as db:
            return db.execute("select count(*), coalesce(sum(tokens), 0) from replies").fetchone()

"""Replies of a paid model, kept on disk, and what they cost."""

from __future__ import annotations

from pathlib import Path

from common.sqlite import SharedStore

_SCHEMA = """
    create table if not exists replies (key text primary key, reply text, tokens integer) without rowid;
    create index if not exists costs on replies (tokens);
"""


class Replies(SharedStore):
    """Reply texts by key. A reply and its cost are kept in one step, so nothing that was paid for is forgotten.

    Raises:
        DataError: the file is no such store, or cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, "replies", _SCHEMA)

    def get(self, key: str) -> str | None:
        """The reply of a key; None where it was never paid for."""
        with self.opened() as db:
            row = db.execute("select reply from replies where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def put(self, key: str, reply: str, tokens: int) -> None:
        """Keep a reply and what it cost."""
        with self.opened() as db:
            db.execute("insert or replace into replies values (?, ?, ?)", (key, reply, tokens))

    def spent(self) -> tuple[int, int]:
        """Replies and tokens paid for so far, by whoever shares the file."""
        with self.opened() as db:
            return db.execute("select count(*), coalesce(sum(tokens), 0) from replies").fetchone()

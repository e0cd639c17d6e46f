"""Replies of a paid model, cached on disk with their cost, and the calls in flight: each is paid once, within the caps.

Several threads and processes share the file. A call is claimed before it is made, and claims count against the caps. A
claim holds as long as its owner holds a lock on a file of its own, which the system frees when a process is killed.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from common.errors import DataError
from common.sqlite import SharedStore

_SCHEMA = """
    create table if not exists replies (key text primary key, reply text, tokens integer) without rowid;
    create index if not exists costs on replies (tokens);
    create table if not exists cut (key text primary key) without rowid;
    create table if not exists completions (key text primary key, tokens integer) without rowid;
    create table if not exists used (work text, model text, key text, paid integer, primary key (work, key))
        without rowid;
    create table if not exists claims (key text primary key, owner text, tokens integer) without rowid;
"""


_SPENT = """
    with costs as (
        select paid, replies.tokens as tokens,
            min(replies.tokens, coalesce(completions.tokens, length(reply) / 4 + 1)) as completion
        from used join replies using (key) left join completions using (key) where work = ? and model = ?
    )
    select count(*), coalesce(sum(tokens - completion), 0), coalesce(sum(completion), 0), coalesce(sum(paid), 0),
        coalesce(sum(paid * (tokens - completion)), 0), coalesce(sum(paid * completion), 0) from costs
"""


class CapReached(Exception):
    """A cap on what may be paid for is reached."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply's text, and whether it was cut at its maximum length."""

    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class Use:
    """Who uses a reply: a piece of work, such as a stage; empty is nobody that counts. And the model that it asks."""

    work: str
    model: str


@dataclass(frozen=True, slots=True)
class Spending:
    """Calls that a piece of work made of a model, each counted once, and the tokens of their prompts and replies.

    The last three are those of replies that it paid for; the other replies were cached before.
    """

    calls: int
    prompt_tokens: int
    completion_tokens: int
    paid_calls: int
    paid_prompt_tokens: int
    paid_completion_tokens: int


@dataclass(frozen=True, slots=True)
class Caps:
    """Replies and tokens that may be paid for; None is no cap."""

    calls: int | None
    tokens: int | None


class Replies(SharedStore):
    """Reply texts by key. A reply and its cost are written in one transaction, so no paid reply is lost.

    Raises:
        DataError: the file is not such a database, or cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, "replies", _SCHEMA)

    def get(self, key: str) -> Reply | None:
        """The reply of a key; None if it is not cached."""
        with self.opened() as db:
            return _reply(db, key)

    def put(
        self, key: str, text: str, tokens: int, *, completion: int = 0, cut: bool = False, use: Use | None = None
    ) -> None:
        """Store a reply and its cost in tokens, those of the `completion` among them, and drop the claim on it."""
        with self.opened() as db:
            db.execute("insert or replace into replies values (?, ?, ?)", (key, text, tokens))
            db.execute("insert or replace into completions values (?, ?)", (key, completion))
            if use is not None and use.work:
                db.execute("insert or replace into used values (?, ?, ?, 1)", (use.work, use.model, key))
            if cut:
                db.execute("insert or replace into cut values (?)", (key,))
            db.execute("delete from claims where key = ?", (key,))

    def note(self, keys: Iterable[str], use: Use) -> None:
        """Note that cached replies were used."""
        if use.work:
            with self.opened() as db:
                rows = [(use.work, use.model, key) for key in keys]
                db.executemany("insert or ignore into used values (?, ?, ?, 0)", rows)

    def spent(self, use: Use) -> Spending:
        """What a piece of work has used of a model; of replies of earlier versions the parts are estimated."""
        with self.opened() as db:
            row = db.execute(_SPENT, (use.work, use.model)).fetchone()
        return Spending(*row)

    def release(self, key: str) -> None:
        """Drop the claim on a call that got no reply."""
        with self.opened() as db:
            db.execute("delete from claims where key = ?", (key,))

    @contextmanager
    def owner(self) -> Iterator[str]:
        """An owner of claims. Claims that it leaves behind, also when killed, are dropped by other owners."""
        name = f"{os.getpid()}-{uuid.uuid4().hex}"
        own = FileLock(self._lock_of(name))
        try:
            with FileLock(f"{self.path}.lock"):  # a new file that is not locked yet looks abandoned
                for path in self.path.parent.glob(self._lock_of("*").name):
                    _abandoned(path)
                own.acquire()
        except OSError as error:
            raise DataError(f"replies {self.path}: {error}; what it holds is kept, fix that and run again") from error
        try:
            yield name
        finally:
            self._lock_of(name).unlink(missing_ok=True)
            own.release()

    def claim(self, key: str, owner: str, tokens: int, caps: Caps) -> bool:
        """Whether the call may be made now; if not, another owner makes it, or calls in flight may use up a cap.

        Args:
            tokens: that the call may cost at most.

        Raises:
            CapReached: says which, and what is spent.
        """
        with self.opened() as db:
            db.execute("begin immediate")
            self._forget_the_dead(db, owner)
            if _reply(db, key) or db.execute("select 1 from claims where key = ?", (key,)).fetchone():
                return False
            if caps != Caps(None, None) and not self._has_room(db, tokens, caps):
                return False
            db.execute("insert into claims values (?, ?, ?)", (key, owner, tokens))
            return True

    def _has_room(self, db: sqlite3.Connection, tokens: int, caps: Caps) -> bool:
        """Whether a call stays within the caps even if all calls in flight are paid; alone it may exceed them.

        Raises:
            CapReached: what is paid for has reached one.
        """
        calls, spent = _totals(db, "replies")
        open_calls, reserved = _totals(db, "claims")
        paid = f"{calls} replies of {spent} tokens are paid for and cached in {self.path.parent}"
        if caps.calls is not None and calls >= caps.calls:
            raise CapReached(f"max_calls {caps.calls} reached: {paid}")
        if caps.tokens is not None and spent >= caps.tokens:
            raise CapReached(f"max_tokens {caps.tokens} reached: {paid}")
        return not open_calls or (
            (caps.calls is None or calls + open_calls < caps.calls)
            and (caps.tokens is None or spent + reserved + tokens <= caps.tokens)
        )

    def _forget_the_dead(self, db: sqlite3.Connection, owner: str) -> None:
        """Drop the claims of owners that have ended or were killed: nobody holds their locks."""
        for (other,) in db.execute("select distinct owner from claims where owner <> ?", (owner,)).fetchall():
            if _abandoned(self._lock_of(other)):
                db.execute("delete from claims where owner = ?", (other,))

    def _lock_of(self, owner: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{owner}.lock")


def _abandoned(path: Path) -> bool:
    """Whether no process holds the lock of this file, which is then removed."""
    try:
        if path.exists():
            with FileLock(path, timeout=0):
                path.unlink(missing_ok=True)
    except Timeout:
        return False
    return True


def _reply(db: sqlite3.Connection, key: str) -> Reply | None:
    row = db.execute(
        "select reply, exists (select 1 from cut where cut.key = replies.key) from replies where key = ?", (key,)
    ).fetchone()
    return Reply(row[0], bool(row[1])) if row else None


def _totals(db: sqlite3.Connection, table: str) -> tuple[int, int]:
    return db.execute(f"select count(*), coalesce(sum(tokens), 0) from {table}").fetchone()

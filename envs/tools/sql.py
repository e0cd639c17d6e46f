"""SQL over an SQLite file that is opened to be read alone: one SELECT a query, within limits that no clock sets."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from common.errors import ConfigError, DataError, ToolError
from common.plain_text import one_line

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_FUNCTION}
# Functions of the clock and of random numbers: the same query must get the same answer, whenever it is asked.
_DENIED = {"date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff", "random", "randomblob"}
_DENIED |= {"current_date", "current_time", "current_timestamp", "load_extension"}
_LONGEST = 100_000  # bytes of a query, of a text and of a row


class SQL:
    """Answers a SELECT with a line of column names and a line a row, its cells between ` | `.

    Whatever would write, open another file, read the clock or draw a random number is refused.

    Args:
        path: the SQLite file; nothing may write it meanwhile.
        rows: that are shown at most.
        steps: of SQLite's machine after which a query is stopped, in thousands.

    Raises:
        ConfigError: a number is below 1.
        DataError: the file is missing, is no SQLite database, or its last changes lie beside it.
    """

    def __init__(self, path: Path, *, rows: int = 20, steps: int = 1000) -> None:
        if min(rows, steps) < 1:
            raise ConfigError(f"SQL: rows {rows}, steps {steps}: each must be at least 1")
        self._path, self._rows, self._steps = Path(path), rows, steps
        log = Path(f"{path}-wal")
        if log.exists() and log.stat().st_size:
            raise DataError(f"{path}: its last changes are still in {log.name}: close the program that writes it")
        try:
            with self._opened() as database:
                database.execute("SELECT name FROM sqlite_master").fetchall()
        except sqlite3.Error as error:
            raise DataError(f"{path}: no SQLite database that can be read: {error}") from error

    def call(self, query: str) -> str:
        """The rows of a SELECT.

        Raises:
            ToolError: SQLite's reason why it has none.
        """
        try:
            with self._opened() as database:
                cursor = database.execute(query)
                names = [name for name, *_ in cursor.description or ()]
                rows = cursor.fetchmany(self._rows + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # the last: a null character, a lone surrogate
            reason = f"stopped after {self._steps} thousand steps" if str(error) == "interrupted" else str(error)
            raise ToolError(one_line(reason)) from None
        lines = [" | ".join(one_line(str(cell)) for cell in row) for row in [names, *rows[: self._rows]]]
        if len(rows) > self._rows:
            lines.append(f"(only the first {self._rows} rows)")
        return "\n".join(lines if rows else ["(no rows)"])

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection of this call alone, which may be any thread's; it locks nothing and writes no file beside."""
        uri = f"{self._path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            thousands = iter(range(self._steps))
            database.set_authorizer(_allowed)
            database.set_progress_handler(lambda: next(thousands, None) is None, 1000)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            yield database


def _allowed(action: int, _: str | None, name: str | None, *others: str | None) -> int:
    denied = action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in _DENIED)
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

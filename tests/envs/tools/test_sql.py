"""SQL over a file: rows as text, and nothing that writes, looks elsewhere, changes with time or runs on and on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from common.errors import ConfigError, DataError, ToolError
from envs.tools.sql import SQL


@pytest.fixture
def films(tmp_path: Path) -> Path:
    path = tmp_path / "films #1.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE film (title TEXT, year INTEGER)")
        database.executemany("INSERT INTO film VALUES (?, ?)", [("A\nB", 1999), ("C", None), ("D", 2001)])
    return path


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("SELECT title, year FROM film WHERE year IS NULL OR year < 2000", "title | year\nA B | 1999\nC | None"),
        ("SELECT title FROM film ORDER BY title DESC", "title\nD\nC\n(only the first 2 rows)"),
        ("SELECT count(*) AS films FROM film", "films\n3"),
        ("SELECT * FROM film WHERE year < 0", "(no rows)"),
        ("SELECT name FROM sqlite_master", "name\nfilm"),
    ],
)
def test_rows(films: Path, query: str, shown: str) -> None:
    assert SQL(films, rows=2).call(query) == shown


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        *(
            (query, "not authorized")
            for query in ("DELETE FROM film", "ATTACH 'x' AS y", "PRAGMA journal_mode", "BEGIN")
        ),
        *((f"SELECT {name}", "not authorized") for name in ("random()", "DATE()", "CURRENT_TIMESTAMP")),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT titel FROM film", "no such column: titel"),
        ("SELECT zeroblob(1000000000)", "too big"),
        ("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n", "9 thousand steps"),
        ("SELECT \0", "null character"),
        ("SELECT '\ud800'", "surrogates"),
    ],
)
def test_what_is_refused_changes_nothing(films: Path, query: str, reason: str) -> None:
    before = films.read_bytes()
    tool = SQL(films, steps=9)
    with pytest.raises(ToolError, match=reason):
        tool.call(query)
    assert films.read_bytes() == before
    assert [path.name for path in films.parent.iterdir()] == [films.name]


def test_another_thread_may_call(films: Path) -> None:
    tool, shown = SQL(films), list[str]()
    thread = Thread(target=lambda: shown.append(tool.call("SELECT max(year) FROM film")))
    thread.start()
    thread.join()
    assert shown == ["max(year)\n2001"]


def test_files_that_cannot_be_read_whole(films: Path, tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("no database" * 100)
    for name in ("text.sqlite", "missing.sqlite"):
        with pytest.raises(DataError, match=f"{name}: no SQLite database that can be read"):
            SQL(tmp_path / name)
    with pytest.raises(ConfigError, match="rows 0"):
        SQL(films, rows=0)
    Path(f"{films}-wal").write_bytes(b"changes")
    with pytest.raises(DataError, match=r"its last changes are still in films #1\.sqlite-wal"):
        SQL(films)

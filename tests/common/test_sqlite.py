"""What is said of a database that cannot be used: never to delete it, since it may hold what was paid for."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from common.errors import DataError
from common.sqlite import SharedStore

SCHEMA = "create table if not exists kept (name text primary key)"


def test_a_full_or_locked_database_is_not_to_be_deleted(tmp_path: Path) -> None:
    store = SharedStore(tmp_path / "kept.sqlite", "replies", SCHEMA)

    def fill() -> None:
        with store.opened() as db:
            db.execute("pragma max_page_count = 1")
            db.executemany("insert into kept values (?)", [(str(number) * 99,) for number in range(999)])

    with pytest.raises(DataError, match=r"kept.sqlite: .*full; what it holds is kept, fix that and run again"):
        fill()


def test_a_file_that_is_no_database_is_kept(tmp_path: Path) -> None:
    (tmp_path / "kept.sqlite").write_text("no database at all, but long enough to have a header of some sort" * 9)
    with pytest.raises(DataError, match="file is not a database; name another file, or move this one") as caught:
        SharedStore(tmp_path / "kept.sqlite", "replies", SCHEMA)
    assert "delete" not in str(caught.value)


def test_a_damaged_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    store = SharedStore(path, "replies", SCHEMA)
    with store.opened() as db:
        db.executemany("insert into kept values (?)", [(f"{number:04}" * 50,) for number in range(2000)])
    with sqlite3.connect(path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    whole = bytearray(path.read_bytes())
    whole[20 * 4096 : 22 * 4096] = b"\xff" * 2 * 4096
    path.write_bytes(whole)
    with (
        pytest.raises(DataError, match=r"malformed; name another .*`sqlite3 MOVED .recover`") as caught,
        store.opened() as db,
    ):
        db.execute("select count(name) from kept where name like '%9'").fetchall()
    assert "delete" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"replies .*kept.sqlite: .*exists: .*; name a file that can be written"):
        SharedStore(tmp_path / "file" / "kept.sqlite", "replies", SCHEMA)

"""What is said of a database that cannot be used: advice to delete it only where it is no database."""

from __future__ import annotations

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

    with pytest.raises(DataError, match=r"replies .*kept.sqlite: .*full; what it holds is kept"):
        fill()


def test_a_damaged_one_may_be_deleted(tmp_path: Path) -> None:
    (tmp_path / "kept.sqlite").write_text("no database at all, but long enough to have a header of some sort" * 9)
    with pytest.raises(DataError, match="file is not a database; delete the file or name another"):
        SharedStore(tmp_path / "kept.sqlite", "replies", SCHEMA)

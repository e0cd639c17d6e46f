"""Upstream files: JSON lists, JSON lines, tables and hub datasets, streamed as (place, row).

Error messages begin with the place (`file:12`, `file: item 3`). A JSON list is read item by item: 2WikiMultiHopQA's
train set is a list of a gigabyte.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from common.errors import DataError
from datamodules.records import numbered_rows

Rows = Iterator[tuple[str, Any]]

_CHUNK = 1 << 20


def read_json(path: Path, key: str | None = None) -> Rows:
    """Rows of a `.jsonl` file, else items of a JSON list; `key` as in `read_json_list`."""
    return numbered_rows(path) if path.suffix == ".jsonl" else read_json_list(path, key)


def read_json_list(path: Path, key: str | None = None) -> Rows:
    """Items of a list that is the whole file or, with `key`, the value of that key in the file's object.

    Raises:
        DataError: the file is missing, not UTF-8, not JSON or not such a list.
    """
    with _opened(path) as file:
        reader = _JSONReader(file)
        try:
            if key is not None and reader.peek() == "{":
                reader.enter(key)
            if reader.peek() != "[":
                wanted = "a list" if key is None else f"a list, or an object with a list under {key!r}"
                raise DataError(f"{path}: expected a JSON file that is {wanted} (JSON lines are named .jsonl)")
            for number, item in enumerate(reader.items(), 1):
                yield f"{path}: item {number}", item
        except json.JSONDecodeError as error:
            line = reader.lines + error.lineno
            raise DataError(f"{path}:{line}: not valid JSON: {error.msg}") from error
        except RecursionError as error:
            raise DataError(f"{path}: JSON nested too deeply") from error


def read_cells(path: Path, delimiter: str = ",") -> Rows:
    """Rows of a CSV or TSV file as lists of cells; blank lines are skipped.

    Raises:
        DataError: the file is missing, not UTF-8 or has a quote that is never closed.
    """
    with _opened(path) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield f"{path}:{reader.line_num}", cells
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: {error}") from error


def read_table(path: Path, delimiter: str = ",") -> Rows:
    """Rows of a CSV or TSV file with a header, as mappings from column to cell.

    Raises:
        DataError: as `read_cells`, or a row has more or fewer cells than the header.
    """
    rows = read_cells(path, delimiter)
    header = next(rows, ("", []))[1]
    for where, cells in rows:
        if len(cells) != len(header):
            raise DataError(f"{where}: {len(cells)} cells where the header has {len(header)}")
        yield where, dict(zip(header, cells, strict=True))


def read_hub(hub: str, name: str | None, split: str, revision: str | None) -> Rows:
    """Rows of one split of a Hugging Face dataset, or of a local folder in the hub's layout, streamed.

    Raises:
        DataError: there is no such dataset, configuration or split, or it cannot be read.
    """
    from datasets import load_dataset  # takes seconds to import, and most sources are files
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(hub, name, split=split, revision=revision, streaming=True)
        for number, row in enumerate(rows, 1):
            yield f"{hub}, split {split}, row {number}", row
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"dataset {hub}, split {split}: {reason or type(error).__name__}") from error


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}") from error


class _JSONReader:
    """Parses a JSON text value by value, with one value in memory. `lines` counts the lines already dropped."""

    def __init__(self, file: TextIO) -> None:
        self.lines = 0
        self._file = file
        self._text = ""
        self._at = 0
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in " \t\r\n":
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def enter(self, key: str) -> None:
        """Move from the start of an object to the value of `key`, or to the object's end if it has no such key."""
        self._take("{")
        while self.peek() != "}":
            name = self._value()
            self._take(":")
            if name == key:
                self.peek()
                return
            self._value()
            if self.peek() != "}":
                self._take(",")

    def items(self) -> Iterator[Any]:
        """The items of the list that starts here."""
        self._take("[")
        while self.peek() != "]":
            yield self._value()
            if self.peek() != "]":
                self._take(",")
        self._take("]")

    def _take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise json.JSONDecodeError(f"expected {wanted!r}", self._text, self._at)
        self._at += 1

    def _value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._more():  # incomplete so far, or malformed
                    raise
            else:
                follower = self._text[end : end + 1]
                if (follower and follower in " \t\r\n,:]}") or not self._more():  # else a number may continue
                    self._at = end
                    return value

    def _more(self) -> bool:
        """Read as much again as is held, so that a long value is decoded only a few times."""
        chunk = self._file.read(max(_CHUNK, len(self._text) - self._at))
        if not chunk:
            return False
        self.lines += self._text.count("\n", 0, self._at)
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True

"""Rows of files: JSON lines, JSON lists, CSV, TSV and Parquet, each also `.gz`, and what the library `datasets` reads.

Rows are streamed as (place, row). Error messages begin with the place (`file:12`, `file: item 3`, `file: row 4`).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TextIO, cast

from common.errors import DataError
from common.json_lists import JSONReader

RowStream = Iterator[tuple[str, Any]]


def read_file(path: Path, split: str | None = None) -> RowStream:
    """Rows of a file, read as its suffix says, or of a folder that `datasets` saved (`read_saved`).

    Raises:
        DataError: the file is missing, of another kind or malformed.
    """
    if path.is_dir():
        return read_saved(path, split)
    if (kind := kind_of(path)) not in _READERS:
        kinds = ", ".join(_READERS)
        raise DataError(
            f"{path}: a file of rows ends in {kinds}, each also with .gz, or is a folder that datasets saved"
        )
    return _READERS[kind](path)


def kind_of(path: Path) -> str:
    """The suffix of a file, without that of `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def numbered_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stream (`"file:line"`, row) of a file of JSON lines; blank lines are skipped.

    Raises:
        DataError: the file is missing, or a line is not a JSON object; names file and line.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{path}:{number}", _object(line, f"{path}:{number}")


def read_json(path: Path, key: str | None = None) -> RowStream:
    """Rows of a `.jsonl` file, else items of a JSON list; `key` as in `read_json_list`."""
    return numbered_rows(path) if kind_of(path) == ".jsonl" else read_json_list(path, key)


def read_json_list(path: Path, key: str | None = None) -> RowStream:
    """Items of a list that is the whole file or, with `key`, the value of that key in the file's object.

    Raises:
        DataError: the file is missing, not UTF-8, not JSON or not such a list.
    """
    with _text(path) as file:
        reader = JSONReader(file)
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


def read_cells(path: Path, delimiter: str = ",") -> RowStream:
    """Rows of a CSV or TSV file as lists of cells; blank lines are skipped.

    Raises:
        DataError: the file is missing, not UTF-8 or has a quote that is never closed.
    """
    with _text(path) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield f"{path}:{reader.line_num}", cells
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: {error}") from error


def read_table(path: Path, delimiter: str = ",") -> RowStream:
    """Rows of a CSV or TSV file with a header, as mappings from column to cell. Cells are text: `007` stays so.

    Raises:
        DataError: as `read_cells`, two columns have one name, or a row has more or fewer cells than the header.
    """
    rows = read_cells(path, delimiter)
    header = next(rows, ("", []))[1]
    if twice := [name for number, name in enumerate(header) if name in header[:number]]:
        raise DataError(f"{path}:1: two columns are named {twice[0]!r}: rename one")
    for where, cells in rows:
        if len(cells) != len(header):
            raise DataError(f"{where}: {len(cells)} cells where the header has {len(header)}")
        yield where, dict(zip(header, cells, strict=True))


def read_parquet(path: Path) -> RowStream:
    """Rows of a Parquet file.

    Raises:
        DataError: the file is missing or no Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    with _opened(path) as file:
        try:
            source = file if path.suffix != ".gz" else io.BytesIO(file.read())  # it is read from its end
            batches = parquet.ParquetFile(source).iter_batches(batch_size=1024)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield f"{path}: row {number}", row
        except pa.ArrowException as error:
            raise DataError(f"{path}: not Parquet: {_reason(error)}") from error


def read_saved(folder: Path, split: str | None) -> RowStream:
    """Rows of a folder that `datasets` wrote (`save_to_disk`); of one with several splits, those of `split`.

    Raises:
        DataError: the folder is none of these, cannot be read, or has no such split.
    """
    from datasets import DatasetDict, load_from_disk

    try:
        data = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: not a folder that save_to_disk of datasets wrote: {_reason(error)}") from error
    if isinstance(data, DatasetDict):
        if split not in data:
            raise DataError(f"{folder}: no split {split!r}: set split to one of {', '.join(map(str, data))}")
        rows = (dict(row) | {"split": split} for row in data[split])
    else:
        rows = iter(data)
    for number, row in enumerate(rows, 1):
        yield f"{folder}: row {number}", row


def read_hub(hub: str, name: str | None, split: str, revision: str | None) -> RowStream:
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
        raise DataError(f"dataset {hub}, split {split}: {_reason(error)}") from error


_READERS: dict[str, Callable[[Path], RowStream]] = {
    ".jsonl": numbered_rows,
    ".json": read_json_list,
    ".csv": read_table,
    ".tsv": partial(read_table, delimiter="\t"),
    ".parquet": read_parquet,
}


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, unpacked where its name ends in `.gz`; errors while it is read name it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield cast("IO[bytes]", file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: not a whole gzip file: {_reason(error)}") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    try:
        with _opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            yield text
    except UnicodeDecodeError as error:
        raise DataError(_undecodable(path) or f"{path}: not UTF-8: {error.reason}") from error


def _undecodable(path: Path) -> str:
    """The first line that is not UTF-8."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"{path}:{number}: {not_utf8(error)}"
    return ""


def not_utf8(error: UnicodeDecodeError) -> str:
    """The message about a line or text that has another encoding."""
    byte = error.object[error.start]
    return f"not UTF-8: byte 0x{byte:02x} at position {error.start + 1}; save the whole file as UTF-8"


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: {not_utf8(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

"""A corpus: a JSONL file of passages that stays on disk, with eight bytes a passage in memory."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.errors import DataError
from common.files import build_once
from common.progress import progress_bar
from common.seeds import stable_hash
from envs.types import Document


def document_from_row(row: object) -> Document:
    """Read `{"id", "title", "text"}` or wiki-18's `{"id", "contents"}`, whose first line is the title in quotes.

    Raises:
        ValueError: what is wrong with the row; the caller adds the place.
    """
    if not isinstance(row, dict):
        raise ValueError("expected a JSON object")
    identifier = row.get("id")
    if not isinstance(identifier, str | int) or isinstance(identifier, bool):
        raise ValueError('key "id" must be a string or an integer')
    if "title" not in row and isinstance(contents := row.get("contents"), str):
        title, _, text = contents.partition("\n")
        quoted = len(title) > 1 and title[0] == title[-1] == '"'
        return _unicode(str(identifier), title[1:-1] if quoted else title, text)
    for key in ("title", "text"):
        if not isinstance(row.get(key), str):
            raise ValueError(f'key "{key}" must be a string (or give "contents" in place of "title" and "text")')
    return _unicode(str(identifier), row["title"], row["text"])


def _unicode(*parts: str) -> Document:
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the row is not valid Unicode (a lone surrogate)") from error
    return Document(*parts)


class DocumentFile:
    """Random access to the passages of a JSONL file, both row styles of `document_from_row`; blank lines are skipped.

    The file is read once and every row is checked. `cache` is a folder that stores the result by the file's path, size
    and modification time, so that a large corpus opens at once the next time. `identity` is the hash of its rows.
    Reading is safe from several threads and after a fork.

    Raises:
        DataError: the file is missing or empty, or a line is malformed, lacks a key or repeats an id.
    """

    def __init__(self, path: Path | str, *, cache: Path | str | None = None) -> None:
        self.path = Path(path)
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 (closed with the object)
        except OSError as error:
            raise DataError(f"corpus {self.path}: {error.strerror}") from error
        weakref.finalize(self, self._file.close)
        if cache is None:
            self._offsets, self.identity = self._scan()
        else:
            stat = os.fstat(self._file.fileno())
            key = stable_hash(str(self.path.resolve()), stat.st_size, stat.st_mtime_ns)
            folder = build_once(Path(cache) / f"corpus-{key:016x}", self._store)
            self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")
            self.identity = (folder / "identity").read_text()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Document:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        return _document(os.pread(self._file.fileno(), end - start, start))

    def __iter__(self) -> Iterator[Document]:
        return (_document(line) for _, _, line in self._lines())

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Number, offset and bytes of every line that is not blank."""
        offset = 0
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, offset, line
                offset += len(line)

    def _scan(self) -> tuple[np.ndarray, str]:
        """Check every row; returns the offsets of the rows, with the file's size as last, and the hash of the rows."""
        offsets, id_hashes, digest = array("q"), array("q"), hashlib.blake2b(digest_size=16)
        size = os.fstat(self._file.fileno()).st_size
        with progress_bar(size, f"reading {self.path.name}", "B") as bar:
            for number, offset, line in self._lines():
                try:
                    id_hashes.append(hash(_document(line).id))
                except ValueError as error:
                    raise DataError(f"{self.path}:{number}: {error}") from error
                offsets.append(offset)
                digest.update(line)
                bar.update(len(line))
        if not offsets:
            raise DataError(f"corpus {self.path}: no passages")
        self._check_ids_unique(np.frombuffer(id_hashes, dtype=np.int64))
        offsets.append(size)
        return np.frombuffer(offsets, dtype=np.int64), digest.hexdigest()

    def _check_ids_unique(self, id_hashes: np.ndarray) -> None:
        values, counts = np.unique(id_hashes, return_counts=True)
        suspects = set(values[counts > 1].tolist())  # two ids may share a hash
        if not suspects:
            return
        first: dict[str, int] = {}
        for number, _, line in self._lines():
            identifier = _document(line).id
            if hash(identifier) in suspects and first.setdefault(identifier, number) != number:
                raise DataError(f"{self.path}:{number}: id {identifier!r} is also that of line {first[identifier]}")

    def _store(self, folder: Path) -> None:
        offsets, identity = self._scan()
        np.save(folder / "offsets.npy", offsets)
        (folder / "identity").write_text(identity)


def _document(line: bytes) -> Document:
    try:
        return document_from_row(json.loads(line))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error

"""A corpus: a file of passages that stays on disk, with eight bytes a passage in memory."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

import numpy as np

from common.document_names import id_key, title_key, unquoted
from common.errors import DataError
from common.progress import progress_bar
from common.row_files import not_utf8, numbered_rows, read_file
from common.seeds import stable_hash
from envs.retrievers.corpus_copy import is_json_lines, opened_copy
from envs.retrievers.index_folder import IndexFolder
from envs.retrievers.watched_file import WatchedFile
from envs.types import Document

ID_KEYS = ("id", "_id", "docid", "doc_id")


def document_from_row(row: object) -> Document:
    """Read a row of any published shape; a key whose value is null is absent.

    - the id: `id`, `_id` (BEIR), `docid` or `doc_id`, a string or an integer;
    - `title` and `text`; or `title` and `contents`, which may begin with the title; or `contents` alone, whose first
      line is the title (wiki-18, FlashRAG), or which is a text without a title where it has a single line.

    A title in double quotes, as in the wiki-18 dump, is read without them (`document_names.unquoted`). Where `contents`
    stands beside it with one more pair of quotes, as in answers of our server, its own quotes are part of it.

    Raises:
        ValueError: what is wrong with the row; the caller adds the place.
    """
    if not isinstance(row, dict):
        raise ValueError("expected a JSON object")
    identifier = next((value for key in ID_KEYS if (value := row.get(key)) is not None), None)
    if not isinstance(identifier, str | int) or isinstance(identifier, bool):
        raise ValueError('key "id" must be a string or an integer')
    fields: dict[str, Any] = row
    title, text, contents = fields.get("title"), fields.get("text"), fields.get("contents")
    if title is None and isinstance(contents, str):
        return _unicode(str(identifier), *_split(contents))
    if text is None and isinstance(contents, str) and isinstance(title, str):
        first, rest = _split(contents)
        text = rest if title_key(first) == title_key(title) else contents
    for key, value in (("title", title), ("text", text)):
        if not isinstance(value, str):
            raise ValueError(f'key "{key}" must be a string (or give "contents" in place of "title" and "text")')
    assert isinstance(title, str)
    assert isinstance(text, str)
    if not isinstance(contents, str) or not contents.startswith(f'"{title}"\n'):
        title = unquoted(title.strip())
    return _unicode(str(identifier), title, text)


def _split(contents: str) -> tuple[str, str]:
    """Title and text."""
    line, end, text = contents.partition("\n")
    title = unquoted(line.strip())
    return (title, text) if end or title != line.strip() else ("", contents)


def _unicode(*parts: str) -> Document:
    try:
        "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the row is not valid Unicode (a lone surrogate)") from error
    return Document(*parts)


class DocumentFile:
    """Random access to the passages of a JSONL file, in the shapes of `document_from_row`; blank lines are skipped.

    A file of another kind, or one that is packed, is copied to JSON lines first (`corpus_copy`). The file is read once
    and every row is checked. `cache` is a folder that stores the result, and a copy, by the file's path and stamp, so
    that a large corpus opens at once the next time. `identity` is the hash of its rows; `composed` says whether all
    titles and texts, in lower case, are in Unicode NFC. The file must keep its rows while it is used: each read checks
    it. Reading is safe from several threads and after a fork.

    Raises:
        DataError: the file is missing, empty or was changed, or a line is malformed, lacks a key or repeats an id.
    """

    def __init__(self, path: Path | str, *, cache: Path | str | None = None) -> None:
        self.path = Path(path)
        whole = is_json_lines(self.path)
        self._place = f"{self.path}:" if whole else f"{self.path}: row "
        self._file = WatchedFile(self.path, "corpus") if whole else opened_copy(self.path, passages(self.path), cache)
        self._folder = None
        if cache is None:
            self._offsets, self.identity, self.composed = self._scan()
        else:
            key = stable_hash(str(self.path.resolve()), *self._file.stamp)
            self._folder = IndexFolder(Path(cache) / f"corpus-{key:016x}", self._store)
            self._offsets = np.load(self._folder.path / "offsets.npy", mmap_mode="r")
            facts = json.loads((self._folder.path / "facts.json").read_text())
            self.identity, self.composed = facts["identity"], facts["composed"]
        self.check()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Document:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        if self._folder is not None:
            self._folder.check()
        line = self._file.read(start, end)
        self._file.check(self.identity, self._digest)
        return _document(line)

    def __iter__(self) -> Iterator[Document]:
        for _, _, line in self._lines():
            yield _document(line)
        self.check()

    def check(self) -> None:
        """Check that the file still has the rows that it had when it was opened, and the cache its offsets.

        Raises:
            DataError: one was changed.
        """
        self._file.check(self.identity, self._digest)
        if self._folder is not None:
            self._folder.check()

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for _, _, line in self._lines():
            digest.update(line)
        return digest.hexdigest()

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Number, offset and bytes of every line that is not blank."""
        offset = 0
        for number, line in enumerate(self._file.lines(), 1):
            if line.strip():
                yield number, offset, line
            offset += len(line)

    def _scan(self) -> tuple[np.ndarray, str, bool]:
        """Check every row; returns their offsets, with the file's size as last, and `identity` and `composed`."""
        offsets, id_hashes, digest, composed = array("q"), array("q"), hashlib.blake2b(digest_size=16), True
        size = self._file.stamp[0]
        with progress_bar(size, f"reading {self.path.name}", "B") as bar:
            for number, offset, line in self._lines():
                try:
                    document = _document(line)
                except ValueError as error:
                    raise DataError(f"{self._place}{number}: {error}") from error
                id_hashes.append(hash(id_key(document.id)))
                composed = composed and is_normalized("NFC", f"{document.title}\n{document.text}".lower())
                offsets.append(offset)
                digest.update(line)
                bar.update(len(line))
        if not offsets:
            raise DataError(f"corpus {self.path}: no passages")
        self._check_ids_unique(np.frombuffer(id_hashes, dtype=np.int64))
        offsets.append(size)
        return np.frombuffer(offsets, dtype=np.int64), digest.hexdigest(), composed

    def _check_ids_unique(self, id_hashes: np.ndarray) -> None:
        values, counts = np.unique(id_hashes, return_counts=True)
        suspects = set(values[counts > 1].tolist())  # two ids may share a hash
        if not suspects:
            return
        first: dict[str, int] = {}
        what = "row" if self._place.endswith(" ") else "line"
        for number, _, line in self._lines():
            identifier = _document(line).id
            key = id_key(identifier)
            if hash(key) in suspects and first.setdefault(key, number) != number:
                raise DataError(f"{self._place}{number}: id {identifier!r} is also that of {what} {first[key]}")

    def _store(self, folder: Path) -> None:
        offsets, identity, composed = self._scan()
        np.save(folder / "offsets.npy", offsets)
        (folder / "facts.json").write_text(json.dumps({"identity": identity, "composed": composed}))


def passages(path: Path) -> Iterator[Document]:
    """Passages of a corpus of any kind, streamed.

    Raises:
        DataError: the corpus cannot be read, or a row is no passage; names file and row.
    """
    for where, row in numbered_rows(path) if is_json_lines(path) else read_file(path):
        try:
            yield document_from_row(row)
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error


def _document(line: bytes) -> Document:
    try:
        return document_from_row(json.loads(line.decode("utf-8-sig")))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(error)) from error
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error

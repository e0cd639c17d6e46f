"""Copies of corpora in JSON lines: random access needs a file with a passage a line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from common.errors import DataError
from common.files import atomic_write
from common.hashes import stamp, visible_files
from common.row_files import kind_of
from common.seeds import stable_hash
from envs.retrievers.index_folder import IndexFolder
from envs.retrievers.watched_file import WatchedFile
from envs.types import Document

_OTHER_KINDS = (".json", ".csv", ".tsv", ".parquet")
_NAME = "passages.jsonl"


def is_json_lines(path: Path) -> bool:
    """Whether a corpus can be read where it is."""
    return path.suffix != ".gz" and kind_of(path) not in _OTHER_KINDS and not path.is_dir()


def opened_copy(path: Path, documents: Iterable[Document], cache: Path | str | None) -> WatchedFile:
    """A copy of the corpus at `path` with its `documents`, which are read for it if it is not there.

    It lies in the folder `cache` as long as the corpus has the same stamp or, without one, goes with the process.

    Raises:
        DataError: there is no such file or folder, or `documents` raises it.
    """
    if not path.exists():
        raise DataError(f"corpus {path}: No such file or directory")
    if cache is None:
        with tempfile.TemporaryDirectory() as folder:  # an open file stays when its name goes
            _write(Path(folder), documents)
            return WatchedFile(Path(folder) / _NAME, "corpus")
    files = [path] if path.is_file() else sorted(visible_files(path))
    key = stable_hash(str(path.resolve()), *(part for file in files for part in stamp(file)))
    copy = IndexFolder(Path(cache) / f"copy-{key:016x}", lambda folder: _write(folder, documents))
    return WatchedFile(copy.path / _NAME, "corpus")


def _write(folder: Path, documents: Iterable[Document]) -> None:
    with atomic_write(folder / _NAME) as file:
        for document in documents:
            row = {"id": document.id, "title": document.title, "text": document.text}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

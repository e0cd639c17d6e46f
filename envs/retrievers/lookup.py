"""Passages of a corpus by id or, where there is no such id, by title."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from common.document_names import id_key, title_key
from common.progress import progress_bar
from envs.retrievers.corpus import DocumentFile
from envs.types import Document


class Lookup:
    """Finds single passages of a corpus file, with 32 bytes a passage in memory.

    Ids and titles are compared as in `common.document_names`; of several passages with one title the first is returned.

    Raises:
        DataError: the corpus cannot be read.
    """

    def __init__(self, corpus: Path) -> None:
        self._documents = DocumentFile(corpus)
        ids, titles = array("q"), array("q")
        with progress_bar(len(self._documents), "indexing names", "passages") as bar:
            for document in self._documents:
                ids.append(hash(id_key(document.id)))
                titles.append(hash(title_key(document.title)))
                bar.update()
        self._ids, self._titles = _sorted(ids), _sorted(titles)

    def find(self, name: str) -> Document | None:
        """The passage with this id, else the first with this title, else None."""
        for document in self._candidates(self._ids, hash(id_key(name))):
            if id_key(document.id) == id_key(name):
                return document
        for document in self._candidates(self._titles, hash(title_key(name))):
            if title_key(document.title) == title_key(name):
                return document
        return None

    def _candidates(self, index: tuple[np.ndarray, np.ndarray], value: int) -> list[Document]:
        hashes, places = index
        start, end = np.searchsorted(hashes, value, "left"), np.searchsorted(hashes, value, "right")
        return [self._documents[int(place)] for place in places[start:end]]


def _sorted(hashes: array[int]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted hashes and their original places; equal hashes keep their order."""
    values = np.frombuffer(hashes, dtype=np.int64)
    places = np.argsort(values, kind="stable")
    return values[places], places

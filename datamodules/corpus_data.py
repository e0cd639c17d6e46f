"""The stage that makes a corpus from a dataset's own passages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import DataError
from common.progress import progress_bar
from datamodules.records import numbered_rows, write_rows
from datamodules.sources import Source


class CorpusData:
    """Writes `data/corpus.jsonl`, rows `{"id", "title", "text"}`: all passages of `source`, in its order, streamed."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Write the corpus, on rank 0; a file that exists is complete and kept.

        Raises:
            DataError: the source has no passages, or cannot be read.
        """
        path = folder / "data" / "corpus.jsonl"
        if rank == 0 and not path.exists():
            write_rows(path, self._rows())

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Headline: the number of `passages`."""
        return {"passages": float(sum(1 for _ in numbered_rows(folder / "data" / "corpus.jsonl")))}

    def _rows(self) -> Iterator[dict[str, Any]]:
        count = 0
        with progress_bar(None, "corpus", "passages") as bar:
            for document in self.source.documents():
                count += 1
                yield {"id": document.id, "title": document.title, "text": document.text}
                bar.update()
        if not count:
            raise DataError("the source has no passages of its own: give the retriever a corpus file instead")

"""The stage that makes a corpus from the passages of datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.document_names import id_key
from common.errors import DataError
from common.progress import progress_bar
from datamodules.records import numbered_rows, write_rows
from datamodules.sources import Source
from envs.types import Document, Question


class CorpusData:
    """Writes `data/corpus.jsonl`, rows `{"id", "title", "text"}`: all passages of a source, in its order, streamed.

    Of several sources a passage that two have by one id comes once; they have to agree on its words.

    Args:
        gold_of: keep the gold passages of these questions alone, by id: what a perfect retriever would look through.
    """

    def __init__(self, source: Source | list[Source], *, gold_of: Source | None = None) -> None:
        self.sources = source if isinstance(source, list) else [source]
        self.gold_of = gold_of

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Write the corpus, on rank 0; a file that exists is complete and kept.

        Raises:
            DataError: there are no passages, two sources differ on one, or a source cannot be read.
        """
        path = folder / "data" / "corpus.jsonl"
        if rank == 0 and not path.exists():
            write_rows(path, self._rows())

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Headline: the number of `passages`."""
        return {"passages": float(sum(1 for _ in numbered_rows(folder / "data" / "corpus.jsonl")))}

    def _rows(self) -> Iterator[dict[str, Any]]:
        gold = None if self.gold_of is None else {id_key(name) for one in self.gold_of for name in _gold(one)}
        written: dict[str, int] | None = {} if len(self.sources) > 1 else None
        count = 0
        with progress_bar(None, "corpus", "passages") as bar:
            for document in (document for source in self.sources for document in source.documents()):
                if gold is not None and id_key(document.id) not in gold:
                    continue
                if written is not None and not _is_new(document, written):
                    continue
                count += 1
                yield {"id": document.id, "title": document.title, "text": document.text}
                bar.update()
        if not count:
            if gold is not None:
                raise DataError("no passage of the source is a gold passage of gold_of: compare their ids")
            raise DataError("the source has no passages of its own: give the retriever a corpus file instead")


def _is_new(document: Document, written: dict[str, int]) -> bool:
    """Whether no passage with its id is among those written, hashes by id; it is then."""
    key, content = id_key(document.id), hash((document.title, *document.text.split()))
    if key not in written:
        written[key] = content
        return True
    if written[key] != content:
        raise DataError(f"two sources have different passages of id {document.id!r}: rename one")
    return False


def _gold(question: Question) -> set[str]:
    """Ids of all its gold passages."""
    gold = question.gold
    return set() if gold is None else {*gold.documents, *(name for step in gold.steps for name in step.documents)}

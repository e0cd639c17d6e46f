"""Questions or passages from JSON, JSON Lines, CSV, TSV and Parquet files, `datasets` folders and the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from common.document_names import id_key, title_key
from common.errors import ConfigError, DataError
from common.row_files import RowStream, kind_of, read_file
from datamodules.sources import Part
from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, accepted
from envs.retrievers.corpus import ID_KEYS, document_from_row
from envs.types import Document, Gold, GoldStep, Question

COLUMNS = {
    "question": "question",
    "answers": "answers",
    "id": "id",
    "titles": "supporting_titles",
    "passages": "supporting_ids",
    "steps": "decomposition",
    "split": "split",
    "type": "type",
    "hops": "hops",
    "title": "title",
    "text": "text",
}
"""What `columns` may name, and the key of a row that it stands for; the last two are those of a passage."""

_IN_EVERY_ROW = ("question", "answers", "text")
_QUESTION = {"question", "query", "text"}

Several = Annotated[tuple[str, ...], BeforeValidator(lambda value: value if isinstance(value, list) else (value,))]
"""A list of texts, or one without a list."""


class PlainStep(Row):
    """A sub-question with its answer and, where known, the id or else the title of its passage."""

    question: str
    answer: str
    passage_id: str | None = None
    title: str | None = None


class PlainRow(Row):
    """A row with any of the usual names; `golden_answers` is FlashRAG's, `_id` BEIR's. Text is not changed.

    Of several names the first that has a value counts. `text` is the last for the question: beside a `question` it is
    the text of a passage.
    """

    version: Literal["question/1"] | None = Field(None, validation_alias="schema")
    id: str = Field("", validation_alias=AliasChoices("id", "_id"))
    text: str = Field("", validation_alias=AliasChoices("question", "query", "text"))
    answers: Several = Field((), validation_alias=AliasChoices("answers", "golden_answers", "answer"))
    gold: Gold | None = None
    type: str | None = None
    hops: int | None = None
    supporting_ids: Several = ()
    supporting_titles: Several = ()
    decomposition: tuple[PlainStep, ...] | None = None
    split: str | None = Field(None, validation_alias=AliasChoices("split", "source_split"))

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, row: Any) -> Any:
        """A key that is null, NaN, or an empty text or list, is absent: another name may have the value."""
        if not isinstance(row, dict):
            return row
        return {key: value for key, value in row.items() if value not in (None, "", []) and value == value}

    def reasoning(self) -> Gold | None:
        """The row's `gold`, or one made of the plain fields, or None where there are none."""
        if self.gold is not None:
            return self.gold
        id_of = dict(zip(map(title_key, self.supporting_titles), self.supporting_ids, strict=False))
        steps = tuple(
            GoldStep(step.question, step.answer, (document,) if document else ())
            for step in self.decomposition or ()
            for document in [step.passage_id or id_of.get(title_key(step.title or ""))]
        )
        gold = Gold(self.hops or len(steps) or None, self.type, steps, self.supporting_ids, self.supporting_titles)
        return None if gold == Gold() else gold


class Rows(Dataset[PlainRow]):
    """Questions in rows, and passages where `columns` names their `text`.

    Rows without an id are counted from `row-1`. Cells of CSV and TSV are text; one with a JSON list is that list.

    Args:
        path: JSON lines, a JSON list, CSV, TSV or Parquet, each also `.gz`, or a folder that `datasets` saved.
        hub, name, revision: in place of a path, as in `Dataset`.
        split: keeps the rows whose `split` (or `source_split`) is this one; of the hub, and of a folder with several
            splits, that split itself.
        columns: names of the file's own columns, by what they hold (`COLUMNS`): `{question: Frage, answers: Antwort}`;
            by default the names that `PlainRow` knows.

    Raises:
        ConfigError: both or neither of `path` and `hub`, or `columns` names what there is not.
    """

    label = "row"
    row_type = PlainRow

    def __init__(
        self,
        path: Path | None = None,
        *,
        hub: str | None = None,
        name: str | None = None,
        revision: str | None = None,
        split: str | None = None,
        columns: dict[str, str] | None = None,
        part: Part | None = None,
        limit: int | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            path,
            hub=hub,
            name=name,
            revision=revision,
            split=split if hub else None,
            part=part,
            limit=limit,
            sample=sample,
            seed=seed,
        )
        self.split = split
        if unknown := [field for field in columns or () if field not in COLUMNS]:
            raise ConfigError(f"columns: no {unknown[0]!r}; it may name {', '.join(COLUMNS)}")
        self._written = dict(columns or {})
        self.columns = {COLUMNS[field]: column for field, column in self._written.items()}

    def read(self, path: Path) -> RowStream:
        rows = read_file(path, self.split)
        return rows if kind_of(path) not in (".csv", ".tsv") else _with_lists(rows)

    def question(self, row: PlainRow, default_id: str) -> Question | str:
        if self.split is not None and self.hub is None and row.split != self.split:
            return f"in split {row.split}"
        return Question(row.id or default_id, row.text, accepted(*row.answers), row.reasoning())

    def documents(self) -> Iterator[Document]:
        """The passages of all rows, where `columns` names their `text`; without an id they are counted from `row-1`.

        Raises:
            DataError: a row is no passage, or has the id of another.
        """
        first: dict[str, str] = {}
        for number, (where, row) in enumerate(self._read() if "text" in self._written else (), 1):
            known = {key: value for key, value in row.items() if value is not None}
            if not known.keys() & set(ID_KEYS):
                known["id"] = f"{self.label}-{number}"
            try:
                document = document_from_row({"title": ""} | known)
            except ValueError as error:
                wrong = str(error)
                for key, column in self.columns.items():
                    wrong = wrong.replace(f'key "{key}"', f"column {column!r}")
                raise DataError(f"{where}: {wrong}") from error
            if (other := first.setdefault(id_key(document.id), where)) != where:
                raise DataError(f"{where}: id {document.id!r} is also that of {other}")
            yield document

    def _read(self) -> RowStream:
        """Rows with the keys of `PlainRow` for the columns that are named."""
        unseen = dict(self._written)
        for where, row in super()._read():
            if isinstance(row, dict):
                if not {"question", "text"} & self._written.keys() and not row.keys() & _QUESTION:
                    raise DataError(f"{where}: no question: set columns; it has {', '.join(map(str, row))}")
                unseen = {field: column for field, column in unseen.items() if column not in row}
                if missing := [column for field, column in unseen.items() if field in _IN_EVERY_ROW]:
                    raise DataError(f"{where}: no column {missing[0]!r}; it has {', '.join(map(str, row))}")
                row = row | {key: row.get(column) for key, column in self.columns.items()}
            yield where, row
        for field, column in unseen.items():
            raise DataError(f"{self.path or self.hub}: no row has a column {column!r} (columns: {field})")


def _with_lists(rows: RowStream) -> RowStream:
    for where, row in rows:
        yield where, {column: _cell(text) for column, text in row.items()}


def _cell(text: str) -> Any:
    """A cell; one with a JSON list is that list."""
    if text.startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text

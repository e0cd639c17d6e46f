"""Questions in plain JSON lines: the suite's own records, or any rows with a question and its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from common.document_names import title_key
from datamodules.sources import Part
from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, accepted
from envs.types import Gold, GoldStep, Question


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
    answers: Annotated[tuple[str, ...], BeforeValidator(lambda v: v if isinstance(v, list) else (v,))] = Field(
        (), validation_alias=AliasChoices("answers", "golden_answers", "answer")
    )
    gold: Gold | None = None
    type: str | None = None
    hops: int | None = None
    supporting_ids: tuple[str, ...] = ()
    supporting_titles: tuple[str, ...] = ()
    decomposition: tuple[PlainStep, ...] | None = None
    split: str | None = Field(None, validation_alias=AliasChoices("split", "source_split"))

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, row: Any) -> Any:
        """A key that is null, or an empty text or list, is absent: another name may have the value."""
        if not isinstance(row, dict):
            return row
        return {key: value for key, value in row.items() if value not in (None, "", [])}

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
        gold = Gold(self.hops, self.type, steps, self.supporting_ids, self.supporting_titles)
        return None if gold == Gold() else gold


class JSONLQuestions(Dataset[PlainRow]):
    """Questions of a JSONL file; `split` keeps the rows whose `split` (or `source_split`) is this one.

    Rows without an id are counted from `jsonl-1`. The corpus is a file of its own.
    """

    label = "jsonl"
    row_type = PlainRow

    def __init__(
        self,
        path: Path,
        *,
        split: str | None = None,
        part: Part | None = None,
        limit: int | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(path, part=part, limit=limit, sample=sample, seed=seed)
        self.split = split

    def question(self, row: PlainRow, default_id: str) -> Question | str:
        if self.split is not None and row.split != self.split:
            return f"in split {row.split}"
        return Question(row.id or default_id, row.text, accepted(*row.answers), row.reasoning())

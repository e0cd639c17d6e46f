"""TriviaQA (Joshi et al. 2017): the published JSON, rc or unfiltered, and the columns of `mandarjoshi/trivia_qa`."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field

from common.row_files import RowStream, read_json
from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, Text, Texts, accepted
from envs.types import Gold, Question


class TriviaQAAnswer(Row):
    """An answer and its other names; the official evaluation scores against the normalised ones."""

    value: Text = Field("", validation_alias=AliasChoices("Value", "value"))
    aliases: Texts = Field((), validation_alias=AliasChoices("Aliases", "aliases"))
    normalized: Texts = Field((), validation_alias=AliasChoices("NormalizedAliases", "normalized_aliases"))
    human: Texts = Field((), validation_alias="HumanAnswers")

    def accepted(self) -> tuple[str, ...]:
        """All names; none where the hub marks the answer as unpublished."""
        return () if self.value == "<unk>" else accepted(self.value, *self.aliases, *self.normalized, *self.human)


class TriviaQARow(Row):
    """A question; its evidence, whole pages in separate files, is not read."""

    id: str = Field(validation_alias=AliasChoices("QuestionId", "question_id"))
    question: Text = Field("", validation_alias=AliasChoices("Question", "question"))
    answer: TriviaQAAnswer | None = Field(None, validation_alias=AliasChoices("Answer", "answer"))


class TriviaQA(Dataset[TriviaQARow]):
    """TriviaQA: one hop, no passages of its own. The test sets have no answers, which is an error."""

    label = "triviaqa"
    row_type = TriviaQARow

    def read(self, path: Path) -> RowStream:
        return read_json(path, key="Data")

    def question(self, row: TriviaQARow, default_id: str) -> Question:
        return Question(row.id, row.question, row.answer.accepted() if row.answer else (), Gold(hops=1))

"""Bamboogle (Press et al. 2023): the prerelease sheet as CSV, the decomposed JSON, the hub's two columns."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from common.row_files import RowStream, kind_of, read_cells, read_json
from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, Text, Texts, accepted
from envs.types import Gold, GoldStep, Question


class BamboogleRow(Row):
    """A question; the decomposed file adds two sub-questions with lists of accepted answers."""

    question: Text = Field("", validation_alias="Question")
    answer: Text = Field("", validation_alias="Answer")
    second_answer: Text = Field("", validation_alias="Answer 2")
    first_question: Text = Field("", validation_alias="Q1")
    first_answers: Texts = Field((), validation_alias="A1")
    last_question: Text = Field("", validation_alias="Q2")


class Bamboogle(Dataset[BamboogleRow]):
    """Bamboogle: two hops, no passages of its own. The file has no ids; they are counted from `bamboogle-1`.

    The last step's answer is the question's: the decomposed file's own list for it (`A2`) also holds wrong ones.
    """

    label = "bamboogle"
    row_type = BamboogleRow

    def read(self, path: Path) -> RowStream:
        return _sheet(path) if kind_of(path) == ".csv" else read_json(path)

    def question(self, row: BamboogleRow, default_id: str) -> Question:
        steps: tuple[GoldStep, ...] = ()
        if row.first_question and row.last_question:
            first_answer = next(iter(accepted(*row.first_answers)), "")
            steps = (GoldStep(row.first_question, first_answer), GoldStep(row.last_question, row.answer))
        gold = Gold(hops=2, type="compositional", steps=steps)
        return Question(default_id, row.question, accepted(row.answer, row.second_answer), gold)


def _sheet(path: Path) -> RowStream:
    """Rows of the sheet, with or without its header; empty columns stand between question and answers."""
    for where, cells in read_cells(path):
        question, *answers = [cell for cell in cells if cell.strip()] or [""]
        if question != "Question":
            yield where, dict(zip(("Question", "Answer", "Answer 2"), (question, *answers), strict=False))

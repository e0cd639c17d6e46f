"""PopQA (Mallen et al. 2023): the official TSV, and the hub's columns (`akariasai/PopQA`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from common.row_files import RowStream, kind_of, read_json, read_table
from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, Text, Texts, accepted, unpacked
from envs.types import Gold, Question


class PopQARow(Row):
    """A question about one fact; the accepted answers are a JSON list inside a cell."""

    id: str
    question: Text = ""
    possible_answers: Annotated[Texts, BeforeValidator(unpacked)] = ()
    prop: str | None = None
    s_wiki_title: Text = ""


class PopQA(Dataset[PopQARow]):
    """PopQA: one hop, the relation as type, the subject's page as gold title; no passages of its own."""

    label = "popqa"
    row_type = PopQARow

    def read(self, path: Path) -> RowStream:
        return read_table(path, "\t") if kind_of(path) == ".tsv" else read_json(path)

    def question(self, row: PopQARow, default_id: str) -> Question:
        gold = Gold(hops=1, type=row.prop, titles=accepted(row.s_wiki_title))
        return Question(row.id, row.question, accepted(*row.possible_answers), gold)

"""Natural Questions, open-domain form (Lee et al. 2019): the official JSON lines, and the hub's `nq_open`."""

from __future__ import annotations

from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, Text, Texts, accepted
from envs.types import Gold, Question


class NQRow(Row):
    """A question and its accepted answers."""

    question: Text = ""
    answer: Texts = ()


class NQ(Dataset[NQRow]):
    """NQ-open: one hop, no passages of its own. The file has no ids; they are counted from `nq-1`."""

    label = "nq"
    row_type = NQRow

    def question(self, row: NQRow, default_id: str) -> Question:
        return Question(default_id, row.question, accepted(*row.answer), Gold(hops=1))

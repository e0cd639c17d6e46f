"""MuSiQue (Trivedi et al. 2022), Answerable and Full: the official JSON lines, which the hub keeps as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator

from common.answers import ABSTENTION
from common.seeds import stable_hash
from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, Text, Texts, accepted, unpacked
from envs.types import Document, Gold, GoldStep, Question


class Paragraph(Row):
    """One of a question's twenty paragraphs."""

    idx: int
    title: Text
    paragraph_text: Text

    def document(self) -> Document:
        """Titles are not unique in MuSiQue, nor is `idx` beyond its question: the id is a hash of the passage."""
        return Document(f"{stable_hash(self.title, self.paragraph_text):016x}", self.title, self.paragraph_text)


class Hop(Row):
    """A sub-question, which may refer to earlier answers as `#1`, and the paragraph that answers it."""

    question: Text
    answer: Text
    paragraph_support_idx: int | None = None


class MuSiQueRow(Row):
    """A question of MuSiQue-Ans or MuSiQue-Full."""

    id: str
    question: Text = ""
    answer: Text = ""
    answer_aliases: Texts = ()
    answerable: bool = True
    paragraphs: Annotated[tuple[Paragraph, ...], BeforeValidator(unpacked)] = ()
    question_decomposition: Annotated[tuple[Hop, ...], BeforeValidator(unpacked)] = ()


class MuSiQue(Dataset[MuSiQueRow]):
    """MuSiQue. The type (`2hop`, `3hop1`, ...), with which ids begin, is the shape of the reasoning.

    MuSiQue-Full has an unanswerable twin of each question, of the same id and without gold paragraphs: twins and their
    passages are skipped; `MuSiQueUnanswerable` has them. Sub-questions keep their `#1` references.
    """

    label = "musique"
    row_type = MuSiQueRow

    def question(self, row: MuSiQueRow, default_id: str) -> Question | str:
        if not row.answerable:
            return "unanswerable"
        documents = {paragraph.idx: paragraph.document() for paragraph in row.paragraphs}
        hops = row.question_decomposition
        support = [documents[i] for hop in hops if (i := hop.paragraph_support_idx) in documents and i is not None]
        gold = Gold(
            hops=len(hops) or None,
            type=row.id.split("__")[0] if "__" in row.id else None,
            steps=tuple(_step(hop, documents) for hop in hops),
            documents=tuple(dict.fromkeys(document.id for document in support)),
            titles=tuple(dict.fromkeys(document.title for document in support)),
        )
        answers = accepted(row.answer, *row.answer_aliases)
        return Question(row.id, row.question, answers, gold)

    def passages(self, row: MuSiQueRow) -> Iterator[Document]:
        return (paragraph.document() for paragraph in row.paragraphs if row.answerable)


class MuSiQueUnanswerable(MuSiQue):
    """The unanswerable twins of MuSiQue-Full alone, whose accepted answer is "I do not know", and their passages."""

    label = "musique unanswerable"

    def question(self, row: MuSiQueRow, default_id: str) -> Question | str:
        if row.answerable:
            return "answerable"
        gold = Gold(hops=len(row.question_decomposition) or None, type="unanswerable")
        return Question(f"{row.id}__unanswerable", row.question, (ABSTENTION,), gold)

    def passages(self, row: MuSiQueRow) -> Iterator[Document]:
        return (paragraph.document() for paragraph in row.paragraphs if not row.answerable)


def _step(hop: Hop, documents: dict[int, Document]) -> GoldStep:
    document = None if hop.paragraph_support_idx is None else documents.get(hop.paragraph_support_idx)
    return GoldStep(hop.question, hop.answer, (document.id,) if document else ())

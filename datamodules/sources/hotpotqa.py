"""HotpotQA (Yang et al. 2018): the official JSON list, and the hub's columns (`hotpotqa/hotpot_qa`)."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field

from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, Text, accepted, tidy, tuples_of
from envs.types import Document, Gold, Question

WikiText = Annotated[str, AfterValidator(html.unescape), AfterValidator(tidy)]
"""Text of the upstream dump, in which `&amp;` and other entities are still escaped."""


class ContextRow(Row):
    """The fields that HotpotQA and 2WikiMultiHopQA share. Files without `context` give no passages."""

    id: str = Field("", validation_alias=AliasChoices("_id", "id"))
    question: Text = ""
    answer: Text = ""
    type: str | None = None
    supporting_facts: Annotated[tuple[tuple[WikiText, int], ...], tuples_of("title", "sent_id")] = ()
    context: Annotated[tuple[tuple[WikiText, tuple[str, ...]], ...], tuples_of("title", "sentences")] = ()

    def titles(self) -> tuple[str, ...]:
        """Titles of the supporting paragraphs, each once."""
        return tuple(dict.fromkeys(title for title, _ in self.supporting_facts))

    def passages(self, joint: str) -> Iterator[Document]:
        """The paragraphs, their sentences joined by `joint`; a title names one paragraph, so it serves as id."""
        for title, sentences in self.context:
            yield Document(title, title, tidy(html.unescape(joint.join(sentences))))


class HotpotQA(Dataset[ContextRow]):
    """HotpotQA, distractor or fullwiki. Two hops each; there is no gold decomposition."""

    label = "hotpotqa"
    row_type = ContextRow

    def question(self, row: ContextRow, default_id: str) -> Question:
        titles = row.titles()
        gold = Gold(hops=2, type=row.type, documents=titles, titles=titles)
        return Question(row.id or default_id, row.question, accepted(row.answer), gold)

    def passages(self, row: ContextRow) -> Iterator[Document]:
        return row.passages("")  # sentences carry their own leading blank

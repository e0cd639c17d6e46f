"""2WikiMultiHopQA (Ho et al. 2020): the official JSON list, with or without contexts, and the hub's columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import ValidationError

from common.errors import DataError
from datamodules.records import explain, numbered_rows
from datamodules.sources import Part
from datamodules.sources.dataset import Dataset
from datamodules.sources.fields import Row, Text, Texts, accepted, tuples_of
from datamodules.sources.hotpotqa import ContextRow
from envs.types import Document, Gold, GoldStep, Question


class TwoWikiRow(ContextRow):
    """HotpotQA's format plus the evidence triples (subject, relation, object) and the answer's Wikidata id."""

    evidences: Annotated[tuple[tuple[Text, Text, Text], ...], tuples_of("fact", "relation", "entity")] = ()
    answer_id: str | None = None

    def steps(self) -> tuple[GoldStep, ...]:
        """One step a triple, in the form of MuSiQue's relation questions, with its subject's paragraph.

        A subject is often the short form of a title ("The Zone", "The Zone (2017 film)"). Subjects and titles without a
        match are paired in order, if there are equally many.
        """
        subjects = dict.fromkeys(subject for subject, _, _ in self.evidences)
        titles = dict.fromkeys(self.titles())
        lone_subjects = [subject for subject in subjects if subject not in titles]
        lone_titles = [title for title in titles if title not in subjects]
        title_of = {title: title for title in titles}
        if len(lone_subjects) == len(lone_titles):
            title_of |= dict(zip(lone_subjects, lone_titles, strict=True))
        return tuple(
            GoldStep(f"{subject} >> {relation}", entity, (title_of[subject],) if subject in title_of else ())
            for subject, relation, entity in self.evidences
        )


class AliasRow(Row):
    """A line of `id_aliases.json`."""

    Q_id: str
    aliases: Texts = ()
    demonyms: Texts = ()


class TwoWiki(Dataset[TwoWikiRow]):
    """2WikiMultiHopQA. Four hops for `bridge_comparison`, two for the other types.

    `aliases` is upstream's `id_aliases.json` (JSON lines); with it, answers that are Wikidata entities are also
    accepted under their other names, as in the official evaluation.
    """

    label = "2wikimultihopqa"
    row_type = TwoWikiRow

    def __init__(
        self,
        path: Path | None = None,
        *,
        aliases: Path | None = None,
        hub: str | None = None,
        name: str | None = None,
        split: str | None = None,
        revision: str | None = None,
        part: Part | None = None,
        limit: int | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            path, hub=hub, name=name, split=split, revision=revision, part=part, limit=limit, sample=sample, seed=seed
        )
        self.aliases = aliases

    def question(self, row: TwoWikiRow, default_id: str) -> Question:
        titles = row.titles()
        hops = 4 if row.type == "bridge_comparison" else 2
        gold = Gold(hops=hops, type=row.type, steps=row.steps(), documents=titles, titles=titles)
        others = self._names.get(row.answer_id, ()) if row.answer and row.answer_id else ()
        return Question(row.id or default_id, row.question, accepted(row.answer, *others), gold)

    def passages(self, row: TwoWikiRow) -> Iterator[Document]:
        return row.passages(" ")

    @cached_property
    def _names(self) -> dict[str, tuple[str, ...]]:
        names: dict[str, tuple[str, ...]] = {}
        for where, values in numbered_rows(self.aliases) if self.aliases else ():
            try:
                row = AliasRow.model_validate(values)
            except ValidationError as error:
                raise DataError(f"{where}: {explain(error)}") from error
            names[row.Q_id] = accepted(*row.aliases, *row.demonyms)
        return names

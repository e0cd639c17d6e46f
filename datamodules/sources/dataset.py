"""The base of all datasets in upstream formats: where rows are read from, and the checks on questions."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ValidationError

from common.answers import normalize_answer
from common.document_names import id_key
from common.errors import ConfigError, DataError
from common.row_files import RowStream, read_hub, read_json
from datamodules.records import check_question, explain
from datamodules.sources import Part, check_choice, choose
from datamodules.sources.fields import Row
from envs.types import Document, Question

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Row)


class Dataset(ABC, Generic[R]):
    """A dataset from an upstream file (`path`) or in the hub's columns (`hub`, with its `name` and `split`).

    `hub` is a Hugging Face id or a local folder that `datasets.load_dataset` understands. Local folders are tested;
    the call to the real hub is not verified. Pin its `revision` for repeatable results.
    `part`, `limit`, `sample` and `seed` are those of `datamodules.sources.choose`; they select questions, not passages.

    Raises:
        ConfigError: both or neither of `path` and `hub`; `hub` without `split`, or an option of `hub` without it.
    """

    label: ClassVar[str]
    row_type: ClassVar[type[Row]]
    columns: Mapping[str, str] = MappingProxyType({})
    """The file's own names of fields, for messages."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        hub: str | None = None,
        name: str | None = None,
        split: str | None = None,
        revision: str | None = None,
        part: Part | None = None,
        limit: int | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        if (path is None) == (hub is None):
            raise ConfigError(f"{self.label}: give either path (an upstream file) or hub (a dataset id or folder)")
        if hub is not None and split is None:
            raise ConfigError(f"{self.label}: hub {hub} needs a split (train, validation, ...)")
        if hub is None and (name or split or revision):
            raise ConfigError(f"{self.label}: name, split and revision need hub; a path is one file")
        check_choice(part=part, limit=limit, sample=sample)
        self.path = None if path is None else Path(path)
        self.hub, self.name, self.split, self.revision = hub, name, split, revision
        self.part, self.limit, self.sample, self.seed = part, limit, sample, seed
        self._warned = False

    @abstractmethod
    def question(self, row: R, default_id: str) -> Question | str:
        """The row's question, or the reason to skip it; `default_id` names it where upstream has no ids."""

    def passages(self, row: R) -> Iterable[Document]:
        """The row's own passages."""
        return ()

    def read(self, path: Path) -> RowStream:
        """Rows of an upstream file."""
        return read_json(path)

    def __iter__(self) -> Iterator[Question]:
        return choose(self._questions(), part=self.part, limit=self.limit, sample=self.sample, seed=self.seed)

    def documents(self) -> Iterator[Document]:
        """The passages of all rows; of several with one id the first."""
        seen: set[str] = set()
        for _, row in self._rows():
            for document in self.passages(row):
                if (key := id_key(document.id)) not in seen:
                    seen.add(key)
                    yield document

    def _questions(self) -> Iterator[Question]:
        silent: list[Question] = []
        try:
            yield from self._checked(silent)
        finally:  # also where a limit ends the iteration
            if silent and not self._warned:
                self._warned = True
                log.warning(
                    "%s: %d questions have no answer but ones that normalise to nothing, such as %r of %s: "
                    "no prediction is right there",
                    self.path or self.hub,
                    len(silent),
                    silent[0].answers[0],
                    silent[0].id,
                )

    def _checked(self, silent: list[Question]) -> Iterator[Question]:
        """The questions; those whose answers normalise to nothing are added to `silent` too."""
        skipped: Counter[str] = Counter()
        seen: set[str] = set()
        for number, (where, row) in enumerate(self._rows(), 1):
            question = self.question(row, f"{self.label}-{number}")
            if isinstance(question, str):
                skipped[question] += 1
                continue
            if id_key(question.id) in seen:
                raise DataError(f"{where}: duplicate question id {question.id!r}")
            check_question(question, where, self.columns)
            seen.add(id_key(question.id))
            if not any(map(normalize_answer, question.answers)):
                silent.append(question)
            yield question
        if not seen:
            reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            suffix = f" (skipped: {reasons})" if reasons else ""
            raise DataError(f"{self.path or self.hub}: no usable question{suffix}")

    def _rows(self) -> Iterator[tuple[str, R]]:
        for where, values in self._read():
            try:
                row: Any = self.row_type.model_validate(values)
            except ValidationError as error:
                raise DataError(f"{where}: {explain(error, self.columns)}") from error
            yield where, row

    def _read(self) -> RowStream:
        if self.path is not None:
            return self.read(self.path)
        assert self.hub is not None
        assert self.split is not None
        return read_hub(self.hub, self.name, self.split, self.revision)

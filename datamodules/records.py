"""Records on disk: JSON lines whose rows name their schema and its version.

A row is `"schema"` and then the fields of a dataclass in their order, so equal objects give equal bytes. Reading checks
every field: a damaged file ends in an error that names the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from common.errors import DataError
from common.files import atomic_write
from common.row_files import numbered_rows
from datamodules.tree.node import Tree
from envs.labelled_steps import LabelledEpisode
from envs.pairs import Pair
from envs.types import Episode, Question, Status, Step, Turn

QUESTION = "question/1"
EPISODE = "episode/1"
TREE = "tree/1"
PAIR = "pair/2"
LABELLED = "labelled/1"

T = TypeVar("T")
_AS_NAMED: Mapping[str, str] = MappingProxyType({})


def question_to_row(question: Question, **extra: Any) -> dict[str, Any]:
    """A `question/1` row; `extra` adds keys, such as `split`, that reading ignores."""
    return _to_row(QUESTION, Question, question) | extra


def episode_to_row(episode: Episode) -> dict[str, Any]:
    """An `episode/1` row: all fields, with the documents of all hits."""
    return _to_row(EPISODE, Episode, episode)


def episode_from_row(row: dict[str, Any], where: str = "row") -> Episode:
    """The episode of an `episode/1` row, equal to the one written.

    Raises:
        DataError: another schema, or a field is missing or of the wrong type.
    """
    return _from_row(EPISODE, Episode, row, where)


def tree_to_row(tree: Tree) -> dict[str, Any]:
    """A `tree/1` row: the question, the counts of its search and all nodes, children inside their parents."""
    return _to_row(TREE, Tree, tree)


def tree_from_row(row: dict[str, Any], where: str = "row") -> Tree:
    """The tree of a `tree/1` row, equal to the one written.

    Raises:
        DataError: another schema, or a field is missing or of the wrong type.
    """
    return _from_row(TREE, Tree, row, where)


def labelled_to_row(labelled: LabelledEpisode) -> dict[str, Any]:
    """A `labelled/1` row: an episode, and the labels of its steps."""
    return _to_row(LABELLED, LabelledEpisode, labelled)


def labelled_from_row(row: dict[str, Any], where: str = "row") -> LabelledEpisode:
    """The labelled episode of a `labelled/1` row, equal to the one written.

    Raises:
        DataError: another schema, a field is missing or of the wrong type, or labels and steps do not match.
    """
    labelled = _from_row(LABELLED, LabelledEpisode, row, where)
    outside = [label for label in labelled.labels if label is not None and not 0 <= label <= 1]
    if outside or len(labelled.labels) != len(labelled.episode.steps):
        raise DataError(f"{where}: a row needs one label a step, in [0, 1] or null")
    return labelled


@dataclass(frozen=True, slots=True)
class _Branch:
    """One side of a pair: its turns and steps after the shared history."""

    turns: list[Turn]
    steps: tuple[Step, ...]
    status: Status | None
    answer: str
    value: float
    visits: int

    @classmethod
    def of(cls, episode: Episode, turns: int, steps: int, value: float, visits: int) -> _Branch:
        return cls(episode.turns[turns:], episode.steps[steps:], episode.status, episode.answer, value, visits)

    def episode(self, history: Episode) -> Episode:
        return replace(
            history,
            turns=history.turns + self.turns,
            steps=history.steps + self.steps,
            status=self.status,
            answer=self.answer,
            truncations=history.truncations.copy(),
        )


@dataclass(frozen=True, slots=True)
class _PairRow:
    """A pair; the history that its two sides share is written once."""

    history: Episode
    chosen: _Branch
    rejected: _Branch
    reason: str


def pair_to_row(pair: Pair) -> dict[str, Any]:
    """A `pair/2` row: the shared `history` as an episode, and each side's further turns, steps, value and visits."""
    chosen, rejected = pair.chosen, pair.rejected
    turns, steps = _shared(chosen.turns[:-1], rejected.turns[:-1]), _shared(chosen.steps, rejected.steps)
    row = _PairRow(
        replace(chosen, turns=chosen.turns[:turns], steps=chosen.steps[:steps], status=None, answer=""),
        _Branch.of(chosen, turns, steps, pair.chosen_value, pair.chosen_visits),
        _Branch.of(rejected, turns, steps, pair.rejected_value, pair.rejected_visits),
        pair.reason,
    )
    return _to_row(PAIR, _PairRow, row)


def pair_from_row(row: dict[str, Any], where: str = "row") -> Pair:
    """The pair of a `pair/2` row; its two episodes share the turns of their history.

    Raises:
        DataError: another schema, or a field is missing or of the wrong type.
    """
    read = _from_row(PAIR, _PairRow, row, where)
    a, b = read.chosen, read.rejected
    sides = a.episode(read.history), b.episode(read.history)
    return Pair(*sides, a.value, a.visits, b.value, b.visits, read.reason)


def _shared(first: Sequence[object], other: Sequence[object]) -> int:
    """Length of the longest common prefix of two sequences."""
    return [*(a == b for a, b in zip(first, other, strict=False)), False].index(False)


def read_rows(path: Path, schema: str | None) -> Iterator[dict[str, Any]]:
    """Stream the rows of a JSONL file; blank lines are skipped; with `schema` None any row is accepted.

    Raises:
        DataError: the file is missing, or a line is not a JSON object of the schema; names file and line.
    """
    for where, row in numbered_rows(path):
        if schema is not None:
            _check_schema(schema, row, where)
        yield row


def rows_in(path: Path) -> int:
    """The number of rows of a JSONL file, 0 where it is missing; nothing is parsed."""
    try:
        with open(path, "rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    except OSError:
        return 0


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows to a JSONL file, streamed; the file is complete or absent.

    Raises:
        DataError: JSON cannot hold a row: a number that is not finite, a lone surrogate, an object of another type.
    """
    with atomic_write(path) as file:
        for number, row in enumerate(rows, 1):
            try:
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            except (TypeError, ValueError) as error:
                raise DataError(f"{path}: row {number} cannot be written: {error}") from error


def check_question(question: Question, where: str, columns: Mapping[str, str] = _AS_NAMED) -> None:
    """Check a question that was read; `where` names its place in the error, `columns` the file's own names.

    Raises:
        DataError: it has no id, text or answer, or a text that is not valid Unicode.
    """

    def column(name: str) -> str:
        return f" in column {columns[name]!r}" if name in columns else ""

    if not question.id.strip():
        raise DataError(f"{where}: a question without id{column('id')}")
    if not question.text.strip():
        raise DataError(f"{where}: question {question.id!r} has no text{column('question')}")
    if not any(answer.strip() for answer in question.answers):
        raise DataError(f"{where}: question {question.id!r} has no answer{column('answers')}")
    try:
        json.dumps(question_to_row(question), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: question {question.id!r} is not valid Unicode (a lone surrogate)") from error


def explain(error: ValidationError, columns: Mapping[str, str] = _AS_NAMED) -> str:
    """The first bad field and what is wrong with it, for an error message; `columns` has the file's own names."""
    first = error.errors(include_url=False)[0]
    place = ".".join(columns.get(str(part), str(part)) for part in first["loc"])
    return ": ".join(filter(None, [place, first["msg"]]))


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def _to_row(schema: str, kind: type[T], value: T) -> dict[str, Any]:
    return {"schema": schema} | _adapter(kind).dump_python(value, mode="json")


def _from_row(schema: str, kind: type[T], row: dict[str, Any], where: str) -> T:
    _check_schema(schema, row, where)
    try:
        return _adapter(kind).validate_python(row)
    except ValidationError as error:
        raise DataError(f"{where}: {explain(error)}") from error


def _check_schema(schema: str, row: dict[str, Any], where: str) -> None:
    actual = row.get("schema")
    if actual != schema:
        raise DataError(f"{where}: the row's schema is {actual!r}; {schema!r} is expected here")

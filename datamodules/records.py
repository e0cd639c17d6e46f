"""Records on disk: JSON lines whose rows name their schema and its version.

A row is the fields of a dataclass of `envs.types` in their order, after `"schema"`: same object, same bytes. Reading
checks every field, so a damaged file ends in an error that names the line, never in a strange object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from envs.errors import DataError
from envs.files import atomic_write
from envs.types import Episode, Question

QUESTION = "question/1"
EPISODE = "episode/1"

T = TypeVar("T")


def question_to_row(question: Question, **extra: Any) -> dict[str, Any]:
    """A `question/1` row; `extra` adds keys (`split`, say) that reading leaves aside."""
    return _to_row(QUESTION, Question, question) | extra


def question_from_row(row: dict[str, Any], where: str = "row") -> Question:
    """The question of a `question/1` row; `where` is how an error names the row.

    Raises:
        DataError: another schema, a field is missing or of the wrong type, or there is no text or no answer.
    """
    return checked(_from_row(QUESTION, Question, row, where), where)


def episode_to_row(episode: Episode, **extra: Any) -> dict[str, Any]:
    """An `episode/1` row: everything, with the documents of all hits, so that an episode can be read alone."""
    return _to_row(EPISODE, Episode, episode) | extra


def episode_from_row(row: dict[str, Any], where: str = "row") -> Episode:
    """The episode of an `episode/1` row, equal to the one that was written.

    Raises:
        DataError: another schema, or a field is missing or of the wrong type.
    """
    return _from_row(EPISODE, Episode, row, where)


def read_rows(path: Path, schema: str | None) -> Iterator[dict[str, Any]]:
    """Stream the rows of a JSONL file; blank lines are left out, `schema` None takes any row.

    Raises:
        DataError: the file is missing, or a line is no JSON object or of another schema; names file and line.
    """
    for where, row in numbered_rows(path):
        if schema is not None:
            _check_schema(schema, row, where)
        yield row


def numbered_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stream (`"file:line"`, row) of a JSONL file.

    Raises:
        DataError: as `read_rows`.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}:{number}", _parse(line, f"{path}:{number}")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as they come to a JSONL file that is whole or absent.

    Raises:
        DataError: a row holds what JSON cannot: a number that is not finite, a lone surrogate, a foreign object.
    """
    with atomic_write(path) as file:
        for number, row in enumerate(rows, 1):
            try:
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            except (TypeError, ValueError) as error:
                raise DataError(f"{path}: row {number} cannot be written: {error}") from error


def checked(question: Question, where: str) -> Question:
    """The question itself, if it has an id, a text and an answer.

    Raises:
        DataError: it has not, or a text in it is no Unicode.
    """
    if not question.id.strip():
        raise DataError(f"{where}: a question without id")
    if not question.text.strip():
        raise DataError(f"{where}: question {question.id!r} has no text")
    if not any(answer.strip() for answer in question.answers):
        raise DataError(f"{where}: question {question.id!r} has no answer")
    try:
        json.dumps(question_to_row(question), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: question {question.id!r} holds half a character (a lone surrogate)") from error
    return question


def explain(error: ValidationError) -> str:
    """What is wrong with the first bad field, as a clause."""
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


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
    found = row.get("schema")
    if found != schema:
        raise DataError(f"{where}: the row's schema is {found!r}; {schema!r} is expected here")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(row).__name__}")
    return row

"""Field types for upstream rows, which pydantic reads and checks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict


class Row(BaseModel):
    """An upstream row; undeclared keys are ignored, integer ids become text."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


def tidy(text: str) -> str:
    """Collapse white space to single blanks: upstream text has no-break, doubled and trailing ones."""
    return " ".join(text.split())


def accepted(*answers: str) -> tuple[str, ...]:
    """Answers without blanks and repeats, in order."""
    return tuple(dict.fromkeys(filter(str.strip, answers)))


def unpacked(value: Any) -> Any:
    """A list of records from the forms in which the hub stores it: a JSON string, or a mapping of columns.

    Raises:
        ValueError: the string is not JSON, or the columns differ in length.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError("text that is not valid JSON") from error
    if isinstance(value, dict):
        columns = list(value.values())
        if not all(isinstance(column, list) for column in columns):
            raise ValueError("expected a list, or columns that are lists")
        return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]
    return value


def tuples_of(*names: str) -> BeforeValidator:
    """Lists of tuples, which the hub stores as records with these names."""

    def tuples(value: Any) -> Any:
        value = unpacked(value)
        if not isinstance(value, list):
            return value
        return [_cells(item, names) if isinstance(item, dict) else item for item in value]

    return BeforeValidator(tuples)


def _cells(item: dict[Any, Any], names: Iterable[str]) -> tuple[Any, ...]:
    missing = [name for name in names if name not in item]
    if missing:
        raise ValueError(f"a record without {missing[0]!r}")
    return tuple(item[name] for name in names)


def _blank_if_none(value: Any) -> Any:
    return "" if value is None else value


def _empty_if_none(value: Any) -> Any:
    return () if value is None else value


Text = Annotated[str, AfterValidator(tidy), BeforeValidator(_blank_if_none)]
"""Text with tidy white space; null becomes blank, which `check_question` rejects."""

Texts = Annotated[tuple[Text, ...], BeforeValidator(_empty_if_none)]
"""A list of texts; null is empty."""

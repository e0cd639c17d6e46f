"""Plain words of YAML, compared with the types that a schema or a signature wants before anything is converted.

A number, `no` or `null` where text is wanted is refused: converted, `1.10` would be `1.1` and `no` would be `False`. A
fingerprint is computed without knowing the types, so what was meant as text has to be written as text. A whole number
in its usual form is the exception, for it is the same text. Where any type will do, `no` could mean either.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, is_typeddict

from common.errors import ConfigError
from pipeline.locations import Key, Locations, linked

_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]*[0-9]")


def check_words(value: object, annotation: Any, key: Key, locations: Locations) -> None:
    """Check that every word in a setting is what its type wants: text, a number, or true or false.

    Raises:
        ConfigError: it is not, and converting it would change it; names the key, the file and the line.
    """
    kinds = list(alternatives(annotation))
    if isinstance(value, dict) and "target" in value:
        return  # a component, whose own signature counts
    if isinstance(value, dict):
        for name, item in value.items():
            for wanted in {_entry(kind, name) for kind in kinds} - {Any} or {Any}:
                check_words(item, wanted, (*key, name), locations)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            for wanted in {_element(kind, index) for kind in kinds} - {Any} or {Any}:
                check_words(item, wanted, (*key, index), locations)
    elif linked(value, key) is None:
        _check_word(value, kinds, key, locations)


def _check_word(value: object, kinds: list[Any], key: Key, locations: Locations) -> None:
    at = locations.at(key)
    number = any(kind in (int, float) for kind in kinds)
    if isinstance(value, str):
        if number and not _wants_text(kinds):
            if _LEADING_ZERO.fullmatch(value):
                raise ConfigError(f"{at} is {value}: write a number without leading zeros")
            if value.strip().lower().lstrip("+-") == "nan":
                raise ConfigError(f"{at} is {value}: it must be a number")
    elif _wants_text(kinds) and not any(_takes(kind, value) for kind in kinds):
        written = locations.written(key)
        if value is None:
            raise ConfigError(f"{at} must be text, and it is empty: leave the line out, or put the text in quotes")
        if type(value) is not int or written not in (None, str(value)):
            raise ConfigError(f"{at} must be text, and {written or value} is read as {value!r}: put it in quotes")
    elif isinstance(value, bool) and kinds[0] in (Any, object):
        if (written := locations.written(key) or "true").lower() not in ("true", "false"):
            raise ConfigError(f"{at} is {written}, read as {value!r}: write {str(value).lower()}, or put it in quotes")
    elif bool in kinds and not number and type(value) is int and value not in (0, 1):
        raise ConfigError(f"{at} is {value}: it must be true or false")


def _wants_text(kinds: Iterable[Any]) -> bool:
    return any(
        kind in (str, bytes, Path)
        or (isinstance(kind, type) and issubclass(kind, Enum))
        or any(isinstance(choice, str) for choice in _choices(kind))
        for kind in kinds
    )


def _takes(kind: Any, value: object) -> bool:
    """Whether a type takes a value that is no text as it is."""
    if kind in (Any, object):
        return True
    if value is None:
        return kind in (None, NoneType)
    if (choices := _choices(kind)) and any(type(value) is type(choice) for choice in choices):
        return True
    return kind is type(value) or (kind is float and type(value) is int)


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def alternatives(annotation: Any) -> Iterable[Any]:
    """The types in a union, without names for types and notes on them."""
    if get_origin(annotation) in (Union, UnionType):
        for kind in get_args(annotation):
            yield from alternatives(kind)
    elif get_origin(annotation) is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif isinstance(annotation, typing.NewType):
        yield from alternatives(annotation.__supertype__)
    else:
        yield annotation


def _entry(kind: Any, name: str | int) -> Any:
    """The type of an entry in a map of a type."""
    if dataclasses.is_dataclass(kind) or is_typeddict(kind):
        try:
            return typing.get_type_hints(kind).get(str(name), Any)
        except (NameError, TypeError):  # imported for the type checker only
            return Any
    origin, entries = get_origin(kind), get_args(kind)
    return entries[1] if isinstance(origin, type) and issubclass(origin, Mapping) and len(entries) == 2 else Any


def _element(kind: Any, index: int) -> Any:
    """The type of an element in a list of a type."""
    origin, elements = get_origin(kind), get_args(kind)
    if not isinstance(origin, type) or not issubclass(origin, Iterable) or issubclass(origin, Mapping) or not elements:
        return Any
    if origin is tuple and elements[-1] is not Ellipsis:
        return elements[index] if index < len(elements) else Any
    return elements[0]

"""Locations of settings: the file and line of each, for messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

Key = tuple[str | int, ...]
_LINK = re.compile(r"(?<!\\)\$\{([\w.\[\]-]+)\}")


class Mark(str):
    """`file:line` of a setting; `written` is its value there, where that is no text and has no quotes: `1e-5`, `no`."""

    written: str | None

    def __new__(cls, place: str, written: str | None = None) -> Self:
        mark = super().__new__(cls, place)
        mark.written = written
        return mark


@dataclass(frozen=True)
class Locations:
    """`marks` gives each key its `file:line`; `links` the key that its value references, if the value is no more."""

    marks: Mapping[Key, str]
    links: dict[Key, Key]

    @classmethod
    def of(cls, value: dict[str, Any], marks: Mapping[Key, str]) -> Locations:
        """Read the links from the settings."""
        links = {key: link for key, leaf in leaves(value) if (link := linked(leaf, key)) is not None}
        return cls(marks, links)

    def where(self, key: Key) -> str:
        """`file:line` of the key or of the nearest key around it; for a referenced part, the line inside the part."""
        key = self._end(key)
        while key and key not in self.marks:
            key = key[:-1]
        return self.marks.get(key, "")

    def at(self, key: Key) -> str:
        """`stages.rl.module (configs/x.yaml:14)`, for messages."""
        return f"{dotted(key)} ({self.where(key)})"

    def unknown(self, key: Key, accepted: Iterable[str]) -> str:
        """The message about a key that is not accepted."""
        *inside, name = key
        at = f" at {dotted(tuple(inside))}" if inside else ""
        return f"unknown key '{name}'{at} ({self.where(key)}){suggest(str(name), accepted)}"

    def written(self, key: Key) -> str | None:
        """The value of the key as it was written, or of the key that it references; None where it is text."""
        return getattr(self.marks.get(self._end(key)), "written", None)

    def _end(self, key: Key) -> Key:
        seen: set[Key] = set()  # links may form a cycle
        while key not in seen:
            seen.add(key)
            key = self._follow(key)
        return key

    def _follow(self, key: Key) -> Key:
        for length in range(1, len(key) + 1):
            link = self.links.get(key[:length])
            if link is not None and link in self.marks:
                return (*link, *key[length:])
        return key


def linked(leaf: object, key: Key) -> Key | None:
    """The key that the value of `key` references, if it is no more: `"${parts.policy}"` -> `("parts", "policy")`."""
    match = _LINK.fullmatch(leaf) if isinstance(leaf, str) else None
    return _absolute(match[1], key) if match else None


def references(leaf: object, key: Key) -> list[Key]:
    """The keys that the value of `key` references, alone or inside a text."""
    return [_absolute(name, key) for name in _LINK.findall(leaf)] if isinstance(leaf, str) else []


def replaced(leaf: str, key: Key, replacement: Callable[[Key], str | None]) -> str:
    """A text with the references for which there is a replacement replaced."""
    return _LINK.sub(lambda match: replacement(_absolute(match[1], key)) or match[0], leaf)


def _absolute(reference: str, key: Key) -> Key:
    """The key that a reference at `key` means: a leading dot is the map around it, and each further one the next."""
    name = reference.lstrip(".")
    levels = len(reference) - len(name)
    return (*(key[:-levels] if levels else ()), *undotted(name))


def leaves(value: object, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value inside maps and lists, with its key."""
    for name, item in children(value):
        if isinstance(item, dict | list):
            yield from leaves(item, (*key, name))
        else:
            yield (*key, name), item


def children(value: object) -> Iterable[tuple[str | int, Any]]:
    """The entries of a map or list; nothing for any other value."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def dotted(key: Key) -> str:
    """`("stages", "rl", 0)` -> `stages.rl[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def undotted(text: str) -> Key:
    """The inverse of `dotted`."""
    return tuple(int(index) if index else name for index, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", text))


def suggest(name: str, accepted: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest accepted name, or all where they are few."""
    accepted = sorted(accepted)
    near = difflib.get_close_matches(name, accepted, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; accepted: {', '.join(accepted)}" if 0 < len(accepted) <= 20 else ""

"""Where each setting was written, so that every message can point at its line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Key = tuple[str | int, ...]
_LINK = re.compile(r"\$\{([\w.-]+)\}")


@dataclass(frozen=True)
class Origins:
    """`marks` gives each key its `file:line`; `links` the key that its value references, if the value is no more."""

    marks: dict[Key, str]
    links: dict[Key, Key]

    @classmethod
    def of(cls, value: dict[str, Any], marks: dict[Key, str]) -> Origins:
        """Read the links from the settings."""
        links = {key: link for key, leaf in leaves(value) if (link := linked(leaf)) is not None}
        return cls(marks, links)

    def where(self, key: Key) -> str:
        """`file:line` of the key or of the nearest key around it; for a referenced part, the line inside the part."""
        for _ in self.links:  # links may form a cycle: follow at most as many as there are
            key = self._follow(key)
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

    def _follow(self, key: Key) -> Key:
        for length in range(1, len(key) + 1):
            if (link := self.links.get(key[:length])) in self.marks:
                return (*link, *key[length:])
        return key


def linked(leaf: object) -> Key | None:
    """The key that a value references: `"${parts.policy}"` -> `("parts", "policy")`."""
    match = _LINK.fullmatch(leaf) if isinstance(leaf, str) else None
    return tuple(match[1].split(".")) if match else None


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

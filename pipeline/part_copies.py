"""Maps that are like a part, or made of some entries of one.

With `like: NAME`, a map is that part with its own settings merged over it. So one part can choose for many components,
each of which adds what is its own: the sampler, and its temperature. `${pick:${parts.test},${parts.sets}}` is a map of
those entries of the first part that the second, a list, names.
"""

from __future__ import annotations

import re
from typing import Any

from common.errors import ConfigError
from pipeline.locations import Key, Mark, children, dotted, linked, suggest, undotted
from pipeline.merging import merge_maps
from pipeline.yaml_reader import Document

_MOST_COPIES = 2_000
_PICK = re.compile(r"\$\{pick:\$\{parts\.([\w-]+)\},\s*\$\{parts\.([\w-]+)\}\}")


def with_parts(merged: Document) -> Document:
    """Merged settings in which every map with a `like` is written out, and every `pick`.

    Raises:
        ConfigError: a `like` names no map among the parts, or parts are like each other in a cycle or without end; a
            `pick` is not of a map and a list, or the list names what is not in the map.
    """
    copies = _Copies(merged)
    return Document(copies.written_out(merged.value, ()), copies.marks)


class _Copies:
    """Settings, and the marks of all that was copied so far."""

    def __init__(self, merged: Document) -> None:
        self._parts = merged.value.get("parts")
        self._copies = 0
        self.marks: dict[Key, Mark] = dict(merged.marks)

    def written_out(self, value: Any, key: Key) -> Any:
        """A value in which no map has a `like`, and no text is a `pick`."""
        if isinstance(value, str) and (match := _PICK.fullmatch(value)):
            return self._picked(match[1], match[2], key)
        if isinstance(value, list):
            return [self.written_out(item, (*key, index)) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        return {name: self.written_out(item, (*key, name)) for name, item in self._copied(value, key, ()).items()}

    def _picked(self, entries: str, names: str, key: Key) -> dict[str, str]:
        """References to the entries of a part that another lists."""
        found, listed = ((self._parts or {}).get(name) for name in (entries, names))
        if not isinstance(found, dict) or not isinstance(listed, list):
            raise ConfigError(
                f"{self._line(key)} must pick from a map what a list names: parts.{entries}, parts.{names}"
            )
        if unknown := [str(name) for name in listed if name not in found]:
            hint = suggest(unknown[0], map(str, found))
            raise ConfigError(f"there is no '{unknown[0]}' in parts.{entries} to pick at {self._line(key)}{hint}")
        return {str(name): f"${{parts.{entries}.{name}}}" for name in listed}

    def _copied(self, value: dict[str, Any], key: Key, trail: Key) -> dict[str, Any]:
        """A map without a `like` of its own; the maps in it may have some."""
        own = {name: item for name, item in value.items() if name != "like"}
        if value.get("like") is None:
            return own
        self._copies += 1
        if self._copies > _MOST_COPIES:
            raise ConfigError(
                f"more than {_MOST_COPIES:,} maps are like a part, one of them {self._line((*key, 'like'))}"
            )
        part, at = self._part(undotted(str(value["like"])), (*key, "like"), trail)
        self._mark(part, at, key)
        return merge_maps(part, own, key, self.marks, {})

    def _part(self, path: Key, like: Key, trail: Key) -> tuple[dict[str, Any], Key]:
        """The map at a path inside the parts, and its key; the setting `like` leads there."""
        if (name := dotted(path)) in trail:
            cycle = " -> ".join(map(str, (*trail[trail.index(name) :], name)))
            raise ConfigError(f"parts are like each other in a cycle: {cycle}, at {self._line(like)}")
        trail = (*trail, name)
        value, key = self._map(self._parts, ("parts",), like, trail)
        for inside in path:
            if inside not in value:
                known = suggest(str(inside), map(str, value))
                raise ConfigError(f"unknown part '{name}' at {self._line(like)}{known}")
            value, key = self._map(value[inside], (*key, inside), like, trail)
        return value, key

    def _map(self, value: object, key: Key, like: Key, trail: Key) -> tuple[dict[str, Any], Key]:
        """The map at a key, or that which is referenced there."""
        if (link := linked(value, key)) and link[0] == "parts":
            return self._part(link[1:], like, trail)
        if not isinstance(value, dict):
            raise ConfigError(f"{self._line(like)} must name a map, and {dotted(key)} is none")
        return self._copied(value, key, trail), key

    def _line(self, like: Key) -> str:
        return f"{dotted(like)} ({self.marks[like]})"

    def _mark(self, part: object, at: Key, key: Key) -> None:
        """Give what is copied from `at` to `key` its lines, but where there is one."""
        for name, item in children(part):
            if (*at, name) in self.marks:
                self.marks.setdefault((*key, name), self.marks[*at, name])
            self._mark(item, (*at, name), (*key, name))

"""References `${…}` between settings, before they are resolved: how much they expand to, and words that they repeat."""

from __future__ import annotations

from typing import Any

from common.errors import ConfigError
from pipeline.locations import Key, Locations, children, references, replaced

_MOST_VALUES = 100_000


def require_small(settings: dict[str, Any], locations: Locations) -> None:
    """Refuse references that expand without end, such as ten lists that each hold the next one ten times.

    Raises:
        ConfigError: the settings would have too many values; names a key that does.
    """
    sizes: dict[Key, int] = {(): 0}

    def size(value: object, key: Key) -> int:
        if key in sizes:
            return sizes[key]
        sizes[key] = 1  # where references form a cycle, which is reported when they are resolved
        total = 1 + sum(size(item, (*key, name)) for name, item in children(value))
        for target in references(value, key):
            total += size(_looked_up(settings, target), target)
        if total > _MOST_VALUES:
            raise ConfigError(f"{locations.at(key)} expands to more than {_MOST_VALUES:,} values")
        sizes[key] = total
        return total

    for name, item in settings.items():
        size(item, (name,))


def _looked_up(settings: object, key: Key) -> object:
    value: Any = settings
    for name in key:
        try:
            value = value[name]
        except (KeyError, IndexError, TypeError):  # reported when the references are resolved
            return None
    return value


def with_written(value: Any, locations: Locations, key: Key = ()) -> Any:
    """Settings whose texts hold the words that they reference as they were written: `v${.x}` is `v1.10` for `x: 1.10`.

    A value that is a reference and no more keeps it: it takes the other's value, of any type.
    """
    if isinstance(value, dict):
        return {name: with_written(item, locations, (*key, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [with_written(item, locations, (*key, index)) for index, item in enumerate(value)]
    return replaced(value, key, locations.written) if isinstance(value, str) and key not in locations.links else value

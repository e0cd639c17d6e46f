"""World size: whether a run's processes can share the sizes of its stages, checked before any work."""

from __future__ import annotations

import inspect
from typing import Any

from common.errors import ConfigError
from pipeline.components import locate
from pipeline.locations import Key, Locations


def check_ranks(data: dict[str, Any], key: Key, locations: Locations, ranks: int) -> None:
    """Ask a stage's data, by its static method `check_ranks(ranks, **settings)` where it has one; builds nothing.

    Raises:
        ConfigError: its batches or groups do not divide among the ranks; names the file and the line of the setting.
    """
    target = locate(data["target"], key, locations)
    check = getattr(target, "check_ranks", None)
    if check is None:
        return
    written = {name: value for name, value in data.items() if name != "target"}
    parameters = inspect.signature(target).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    try:
        check(ranks, **defaults | written)
    except ConfigError as error:
        named = [name for name, value in written.items() if f"{name} {value}" in str(error)]
        at = locations.at((*key, *named[:1]))
        raise ConfigError(f"{error}: change it at {at}, or give fewer devices") from error

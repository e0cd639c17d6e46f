"""Views of an experiment that runs nothing: a stage's settings, and what a dry run prints.

A stage's settings are as all files and overrides leave them, as YAML to copy; a comment says where each line is from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import yaml

from common.errors import ConfigError
from pipeline.first_rows import first_rows
from pipeline.loader import Configuration
from pipeline.locations import Key, Locations, children, dotted, suggest
from pipeline.plan import Plan
from pipeline.yaml_reader import COMMAND_LINE, parse

_COLUMN = 60  # of the comments


def shown(name: str, configuration: Configuration) -> str:
    """The stage with references resolved: the comment says where the value is written, and where it is referenced.

    Raises:
        ConfigError: there is no such stage.
    """
    stages = configuration.resolved["stages"]
    if name not in stages:
        raise ConfigError(f"unknown stage '{name}' on the command line{suggest(name, stages)}")
    lines = _lines({name: stages[name]}, ("stages",), configuration.locations, "")
    return "\n".join(f"{text.ljust(_COLUMN)}  # {place}" for text, place in lines)


def preview(plan: Plan) -> str:
    """The stages of a plan, and the first rows of what they read.

    Raises:
        DataError: an input is missing or malformed.
    """
    return f"{plan.table()}\n\n{first_rows(plan)}".rstrip()


def _lines(value: Any, key: Key, locations: Locations, indent: str) -> Iterator[tuple[str, str]]:
    """Every line below a key, and where it is from."""
    for name, item in children(value):
        here = (*key, name)
        start = f"{indent}- " if isinstance(value, list) else f"{indent}{_scalar(name)}: "
        if item and isinstance(item, dict | list):
            yield start.rstrip(), _place(here, locations)
            yield from _lines(item, here, locations, f"{indent}  ")
        else:
            yield start + _scalar(item), _place(here, locations)


def _place(key: Key, locations: Locations) -> str:
    place, link = locations.where(key), locations.links.get(key)
    return place if link is None else f"{place}, as ${{{dotted(link)}}} at {locations.marks[key]}"


def _scalar(value: object) -> str:
    """A name or a value, or an empty map or list, as one line of YAML that is read as the same."""
    dumped = yaml.safe_dump(value, allow_unicode=True, default_flow_style=True, width=float("inf"))
    text = dumped.removesuffix("...\n").rstrip("\n")
    if not isinstance(value, str):
        return text
    with suppress(ConfigError):
        if "\n" not in text and parse(f"{text}: {text}", COMMAND_LINE, {}) == {value: value}:
            return text
    return yaml.safe_dump(value, default_style='"', width=float("inf")).rstrip("\n")

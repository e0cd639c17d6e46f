"""Chains of settings: a file after the files that it names under `base:`, and `key=value` overrides."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from pipeline.origins import Key, Mark
from pipeline.yaml_reader import COMMAND_LINE, Document, label, parse, read, text_of

_CONFIGS = Path(__file__).parent.parent / "configs"
_LONGEST_CHAIN = 50  # of files, each the base of the next


def read_chain(path: Path) -> list[Document]:
    """A file preceded by its bases and theirs, each file once, at its first mention.

    Raises:
        ConfigError: a file is missing or not YAML, or the bases form a cycle.
    """
    found: dict[Path, Document] = {}
    _chain(path, (), found)
    return list(found.values())


def _chain(path: Path, trail: tuple[Path, ...], found: dict[Path, Document]) -> None:
    """Add to `found` a file and, before it, its bases that are not there yet."""
    try:
        path = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a zero byte
        raise ConfigError(f"cannot read {label(path)}: {error}") from error
    if path in trail:
        cycle = " -> ".join(label(step) for step in (*trail[trail.index(path) :], path))
        raise ConfigError(f"the bases form a cycle: {cycle}")
    if len(trail) == _LONGEST_CHAIN:
        raise ConfigError(f"{label(path)} is the base of a base more than {_LONGEST_CHAIN} times over")
    if path in found:
        return
    document = read(path)
    bases = document.value.pop("base", [])
    if not isinstance(bases, str | list | None):
        raise ConfigError(f"base ({document.marks[('base',)]}) must be a file or a list of files, not {bases!r}")
    for name in [bases] if isinstance(bases, str) else bases or []:
        _chain(_find(name, path, document.marks[("base",)]), (*trail, path), found)
    found[path] = document


def _find(name: object, beside: Path, mark: str) -> Path:
    for folder in (beside.parent, _CONFIGS):
        if isinstance(name, str) and os.path.isfile(folder / name):
            return folder / name
    raise ConfigError(f"no base file '{name}' ({mark}): looked in {label(beside.parent)} and {label(_CONFIGS)}")


def question_of(path: Path) -> str:
    """The question that the comment at the head of a file asks, empty if it asks none."""
    comment: list[str] = []
    for line in text_of(path).splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    text, mark, _ = " ".join(comment).partition("?")
    return text + mark if mark else ""


def from_overrides(overrides: Iterable[str]) -> Document:
    """`key=value` arguments as one document; values are YAML.

    Raises:
        ConfigError: an override has no `=` or no key, or contradicts another.
    """
    value: dict[str, Any] = {}
    marks: dict[Key, Mark] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        *parents, last = parts = name.split(".")
        if not equals or not all(parts):
            raise ConfigError(
                f"'{override}' is not an override: write key=value, such as stages.rl.trainer.max_epochs=2"
            )
        inside = value
        for depth, parent in enumerate(parents):
            marks[tuple(parts[: depth + 1])] = COMMAND_LINE
            inside = inside.setdefault(parent, {})
            if not isinstance(inside, dict):
                raise ConfigError(f"'{override}' contradicts another override of {'.'.join(parts[: depth + 1])}")
        if isinstance(inside.get(last), dict):
            raise ConfigError(f"'{override}' contradicts another override inside {name}")
        inside[last] = parse(text, COMMAND_LINE, marks, tuple(parts))
    return Document(value, marks)

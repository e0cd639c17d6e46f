"""YAML files as plain maps, with the line of every key, and the files that they name under `base:`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from common.errors import ConfigError
from pipeline.origins import Key

_CONFIGS = Path(__file__).parent.parent / "configs"
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Document:
    """Settings, and the `file:line` of every key."""

    value: dict[str, Any] = field(default_factory=dict)
    marks: dict[Key, str] = field(default_factory=dict)


def read_chain(path: Path) -> list[Document]:
    """A file preceded by its bases and theirs, each file once, at its first mention.

    Raises:
        ConfigError: a file is missing or not YAML, or the bases form a cycle.
    """
    return list(_chain(path, ()).values())


def _chain(path: Path, trail: tuple[Path, ...]) -> dict[Path, Document]:
    path = path.resolve()
    if path in trail:
        cycle = " -> ".join(_label(step) for step in (*trail[trail.index(path) :], path))
        raise ConfigError(f"the bases form a cycle: {cycle}")
    document = read(path)
    bases = document.value.pop("base", [])
    if not isinstance(bases, str | list | None):
        raise ConfigError(f"base ({document.marks[('base',)]}) must be a file or a list of files, not {bases!r}")
    chain: dict[Path, Document] = {}
    for name in [bases] if isinstance(bases, str) else bases or []:
        chain |= _chain(_find(name, path, document.marks[("base",)]), (*trail, path))
    return {**chain, path: document}


def _find(name: object, beside: Path, mark: str) -> Path:
    for folder in (beside.parent, _CONFIGS):
        if isinstance(name, str) and (folder / name).is_file():
            return folder / name
    raise ConfigError(f"no base file '{name}' ({mark}): looked in {_label(beside.parent)} and {_label(_CONFIGS)}")


def read(path: Path) -> Document:
    """One file, without its bases."""
    label = _label(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {label}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label} is not UTF-8 text") from error
    marks: dict[Key, str] = {(): label}
    value = _parse(text, label, marks)
    if not isinstance(value, dict):
        raise ConfigError(f"{label} must hold a map of settings, such as 'experiment: name'")
    return Document(value, marks)


def question_of(path: Path) -> str:
    """The question that the comment at the head of a file asks, empty if it asks none."""
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
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
    marks: dict[Key, str] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        *parents, last = parts = name.split(".")
        if not equals or not all(parts):
            raise ConfigError(
                f"'{override}' is not an override: write key=value, such as stages.rl.trainer.max_epochs=2"
            )
        inside = value
        for depth, parent in enumerate(parents):
            marks[tuple(parts[: depth + 1])] = "command line"
            inside = inside.setdefault(parent, {})
            if not isinstance(inside, dict):
                raise ConfigError(f"'{override}' contradicts another override of {'.'.join(parts[: depth + 1])}")
        inside[last] = _parse(text, "command line", marks, tuple(parts))
        marks[tuple(parts)] = "command line"
    return Document(value, marks)


class _Loader(yaml.SafeLoader):
    """YAML 1.1, except that `1e-5` is a number and a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TAG + "timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    _TAG + "float", re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse(text: str, label: str, marks: dict[Key, str], key: Key = ()) -> Any:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else _construct(loader, node, label, marks, key)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{_mark(label, line)}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{label} is not YAML: {' '.join(str(error).split())}") from error


def _construct(
    loader: _Loader, node: yaml.Node, label: str, marks: dict[Key, str], key: Key, above: tuple[yaml.Node, ...] = ()
) -> Any:
    if any(node is one for one in above):
        raise ConfigError(f"{_mark(label, node.start_mark.line + 1)}: an anchor whose value holds itself")
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            marks[(*key, index)] = _mark(label, item.start_mark.line + 1)
        return [_construct(loader, item, label, marks, (*key, index), above) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    entries: dict[str, Any] = {}
    for name_node, value_node in node.value:
        name = loader.construct_object(name_node)
        mark = _mark(label, name_node.start_mark.line + 1)
        if type(name) not in (str, int):
            raise ConfigError(f"the key {name!r} ({mark}) is not text: put it in quotes")
        if name in entries:
            raise ConfigError(f"the key '{name}' ({mark}) is defined twice: first at {marks[(*key, name)]}")
        marks[(*key, name)] = mark
        entries[name] = _construct(loader, value_node, label, marks, (*key, name), above)
    return entries


def _mark(label: str, line: int) -> str:
    return label if label == "command line" else f"{label}:{line}"


def _label(path: Path) -> str:
    """The path for messages: relative to the working folder, if it is inside."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative

"""One YAML text as a plain map, with the place of every key and every value as it was written.

The reader is YAML 1.1 without its traps: `1e-5` is a number, and `0012`, `12:30` and dates are text. Keys are text.
Tags, merge keys and texts too large or too deep to be settings are refused.
"""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from common.errors import ConfigError
from pipeline.locations import Key, Mark

COMMAND_LINE = Mark("command line")
_TAG = "tag:yaml.org,2002:"
_TAGS = {_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map")}
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
_DEEPEST, _MOST_VALUES, _LONGEST = 60, 20_000, 1_000_000  # levels, values, characters


@dataclass(frozen=True)
class Document:
    """Settings, and the mark of every key."""

    value: dict[str, Any] = field(default_factory=dict)
    marks: dict[Key, Mark] = field(default_factory=dict)


def stages_of(document: Document) -> dict[str, Any]:
    """The stages of a document; none where they are no map, which is reported later."""
    stages = document.value.get("stages")
    return stages if isinstance(stages, dict) else {}


def read(path: Path) -> Document:
    """One file, without its bases.

    Raises:
        ConfigError: the file is missing, unreadable or not a YAML map of settings.
    """
    name = label(path)
    marks: dict[Key, Mark] = {(): Mark(name)}
    value = parse(text_of(path), Mark(name), marks)
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must hold a map of settings, such as 'experiment: name'")
    return Document(value, marks)


def text_of(path: Path) -> str:
    """Text of a file of settings.

    Raises:
        ConfigError: the file is missing, unreadable, no regular file, too large or not UTF-8.
    """
    name = label(path)
    try:
        if not stat.S_ISREG((status := path.stat()).st_mode):  # a pipe could wait forever, and is not there to resume
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ConfigError(f"cannot read {name}: it is {kind}")
        if status.st_size > _LONGEST:
            raise ConfigError(f"{name} is too large for settings: at most {_LONGEST:,} characters are read")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text") from error


def label(path: Path) -> str:
    """The path for messages: relative to the working folder, if it is inside."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working folder is gone, or a zero byte
        return str(path)
    return str(path) if relative.startswith("..") else relative


def parse(text: str, place: Mark, marks: dict[Key, Mark], key: Key = ()) -> Any:
    """The value of a text that is at `place`; adds to `marks`, under `key`, those of every key in it.

    Raises:
        ConfigError: the text is not YAML, or larger or deeper than settings are.
    """
    reader = _Reader(place, marks)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if place == COMMAND_LINE:
            _require_no_comment(text, node, key)
            marks[key] = reader.mark(node, node)
        return None if node is None else reader.value(loader, node, key)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{reader.at(line)}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{place} is not YAML: {' '.join(str(error).split())}") from error


def _require_no_comment(text: str, node: yaml.Node | None, key: Key) -> None:
    """Refuse a comment in an override: it would be dropped silently."""
    read = 0 if node is None else node.end_mark.index
    if text[read:].lstrip().startswith("#"):
        raise ConfigError(
            f"'{'.'.join(map(str, key))}={text}' has a comment: put the value in quotes inside the shell's"
        )


def _require_text(text: str, at: str) -> None:
    """Refuse zero bytes and lone surrogates, which no file and no file name can hold."""
    if _UNWRITABLE.search(text):
        raise ConfigError(f"{at}: a text holds a zero byte or a character that is not Unicode")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with other numbers, and with bounds on what it composes."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAG) in ("bool", "null", "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.nodes += 1
        self.depth += 1
        if self.depth > _DEEPEST or self.nodes > _MOST_VALUES:
            how = f"deeper than {_DEEPEST} levels" if self.depth > _DEEPEST else f"of more than {_MOST_VALUES:,} values"
            raise yaml.MarkedYAMLError(problem=f"settings {how}", problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.add_implicit_resolver(
    _TAG + "int", re.compile(r"[-+]?(0|[1-9][\d_]*|0x[\da-fA-F_]+|0b[01_]+)$", re.ASCII), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    _TAG + "float",
    re.compile(
        r"[-+]?((\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$",
        re.ASCII,
    ),
    list("-+.0123456789"),
)


class _Reader:
    """Values of nodes, each with its mark; counts them, for an alias costs nothing to write and all to expand."""

    def __init__(self, place: Mark, marks: dict[Key, Mark]) -> None:
        self._place, self._marks, self._count = place, marks, 0

    def at(self, line: int) -> str:
        """`file:line`."""
        return self._place if self._place == COMMAND_LINE else f"{self._place}:{line}"

    def mark(self, node: yaml.Node | None, value: yaml.Node | None) -> Mark:
        """The place of a node, with its value as it was written, where that is no text."""
        written = value.value if isinstance(value, yaml.ScalarNode) and value.tag != _TAG + "str" else None
        return Mark(self.at(node.start_mark.line + 1 if node else 1), written)

    def value(self, loader: _Loader, node: yaml.Node, key: Key, above: tuple[yaml.Node, ...] = ()) -> Any:
        """The plain value of a node.

        Raises:
            ConfigError: it has a tag, a duplicate or unnamed key, or holds itself.
        """
        at = self.at(node.start_mark.line + 1)
        self._count += 1
        if any(node is one for one in above):
            raise ConfigError(f"{at}: an anchor whose value holds itself")
        if self._count > _MOST_VALUES or len(above) > _DEEPEST:
            raise ConfigError(f"{at}: settings of more than {_MOST_VALUES:,} values or {_DEEPEST} levels, with aliases")
        if node.tag not in _TAGS:
            raise ConfigError(f"{at}: could not determine a constructor for the tag {node.tag}: leave the tag out")
        if isinstance(node, yaml.ScalarNode):
            _require_text(node.value, at)
            return self._scalar(loader, node, at)
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._marks[(*key, index)] = self.mark(item, item)
            return [self.value(loader, item, (*key, index), above) for index, item in enumerate(node.value)]
        entries: dict[str, Any] = {}
        for name_node, value_node in node.value:
            mark = self.mark(name_node, value_node)
            if name_node.tag == _TAG + "merge":
                raise ConfigError(f"{mark}: the merge key << is not read: use base, parts or like")
            if not isinstance(name_node, yaml.ScalarNode):
                raise ConfigError(f"{mark}: a key must be a name, not a list or a map")
            name, read = name_node.value, loader.construct_object(name_node)
            if str(read) != name or not isinstance(read, str | int) or isinstance(read, bool):
                raise ConfigError(f"the key {read!r} ({mark}) is not text: put {name} in quotes")
            _require_text(name, mark)
            if name in entries:
                raise ConfigError(f"the key '{name}' ({mark}) is defined twice: first at {self._marks[(*key, name)]}")
            self._marks[(*key, name)] = mark
            entries[name] = self.value(loader, value_node, (*key, name), above)
        return entries

    def _scalar(self, loader: _Loader, node: yaml.ScalarNode, at: str) -> Any:
        try:
            value = loader.construct_object(node)
        except (ValueError, KeyError) as error:  # `!!int word`, or an integer of thousands of digits
            raise ConfigError(
                f"{at}: {node.value[:40]} is not a value of its kind: put it in quotes if it is text"
            ) from error
        if isinstance(value, float) and (math.isnan(value) or (math.isinf(value) and "inf" not in node.value.lower())):
            raise ConfigError(f"{at}: {node.value[:40]} is NaN or too large a number: put it in quotes if it is text")
        return value

"""Chains of settings: a file after the files that it names under `base:`, and `key=value` overrides."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from pipeline.fingerprints import NO_INPUT, is_path, stage_names, with_folders
from pipeline.locations import Key, Mark
from pipeline.yaml_reader import COMMAND_LINE, Document, label, parse, read, stages_of, text_of

_CONFIGS = Path(__file__).parent.parent / "configs"
_PREFIX = re.compile(r"\w[\w.-]*")
_WITH_PATHS = ("data_root", "parts", "stages")
_LONGEST_CHAIN = 50  # of files, each the base of the next


_Files = dict[Path, tuple[Document, list[tuple[object, str, Mark]]]]


@dataclass(frozen=True)
class _Base:
    """A file, its prefix, and the names of all stages in it and its bases; `kept` are those that no prefix changes."""

    document: Document
    prefix: str
    stages: frozenset[str]
    kept: frozenset[str]


def read_chain(path: Path) -> list[Document]:
    """A file preceded by its bases and theirs, each file once, at its first mention.

    A base `{file: FILE, prefix: NAME_}` is the file with other names of its stages (`with_prefix`). So are its own
    bases, but for those that the chain has without a prefix too: what others share keeps its names.

    Raises:
        ConfigError: a file is missing or not YAML, the bases form a cycle, or one has two prefixes.
    """
    shared: set[Path] = set()
    files: _Files = {}
    _without_prefix(path, (), shared, files)
    found: dict[Path, _Base] = {}
    _chain(path, "", (), shared, files, found)
    names: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by prefix
    for base in found.values():
        names[base.prefix] |= {stage: _prefixed(stage, base.prefix) for stage in base.stages - base.kept}
    return [with_prefix(one.document, names[one.prefix]) if one.prefix else one.document for one in found.values()]


def _without_prefix(path: Path, trail: tuple[Path, ...], shared: set[Path], files: _Files) -> None:
    """Add to `shared` a file and all of its bases that no prefix leads to."""
    path = _resolved(path, trail)
    if path not in shared:
        for name, prefix, mark in _opened(path, files)[1]:
            if not prefix:
                _without_prefix(_find(name, path, mark), (*trail, path), shared, files)
        shared.add(path)


def _chain(
    path: Path, prefix: str, trail: tuple[Path, ...], shared: set[Path], files: _Files, found: dict[Path, _Base]
) -> _Base:
    """Add to `found` a file and, before it, its bases that are not there yet."""
    path = _resolved(path, trail)
    if path not in found:
        document, bases = _opened(path, files)
        stages, kept = frozenset(stages_of(document)), frozenset[str]()
        for name, own, mark in bases:
            file = _find(name, path, mark)
            under = own or ("" if file.resolve() in shared else prefix)
            base = _chain(file, under, (*trail, path), shared, files, found)
            if base.prefix != under:
                raise ConfigError(f"{label(file)} is a base under two prefixes, '{base.prefix}' and '{under}' ({mark})")
            stages |= base.stages
            kept |= base.kept if under else base.stages
        found[path] = _Base(document, prefix, stages, kept)
    return found[path]


def _opened(path: Path, files: _Files) -> tuple[Document, list[tuple[object, str, Mark]]]:
    """A file, read once, and its bases."""
    if path not in files:
        document = read(path)
        bases = list(_bases(document))
        for name in {*_WITH_PATHS} & {*document.value} if label(path.parent) != "." else ():
            document.value[name] = _found_beside(document.value[name], name, path.parent)
        files[path] = document, bases
    return files[path]


def _found_beside(value: Any, name: object, folder: Path) -> Any:
    """A setting, its relative paths of what lies in the folder of its file as paths from the working folder."""
    if isinstance(value, dict):
        return {key: item if key in NO_INPUT else _found_beside(item, key, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_found_beside(item, name, folder) for item in value]
    if isinstance(value, str) and name != "target" and is_path(value) and not os.path.isabs(value):
        return label(beside) if os.path.exists(beside := folder / value) else value
    return value


def _resolved(path: Path, trail: tuple[Path, ...]) -> Path:
    try:
        path = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a zero byte
        raise ConfigError(f"cannot read {label(path)}: {error}") from error
    if path in trail:
        cycle = " -> ".join(label(step) for step in (*trail[trail.index(path) :], path))
        raise ConfigError(f"the bases form a cycle: {cycle}")
    if len(trail) == _LONGEST_CHAIN:
        raise ConfigError(f"{label(path)} is the base of a base more than {_LONGEST_CHAIN} times over")
    return path


def _bases(document: Document) -> Iterator[tuple[object, str, Mark]]:
    """The file, prefix and line of each base; takes them out of the document."""
    bases = document.value.pop("base", None)
    for index, base in enumerate(bases if isinstance(bases, list) else [] if bases is None else [bases]):
        mark = document.marks.get(("base", index), document.marks[("base",)])
        if isinstance(base, str):
            yield base, "", mark
            continue
        prefix = base.get("prefix") if isinstance(base, dict) and base.keys() == {"file", "prefix"} else None
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"a base ({mark}) must be a file or {{file: FILE, prefix: NAME_}}, not {base!r}")
        yield base["file"], prefix, mark


def with_prefix(document: Document, names: Mapping[str, str]) -> Document:
    """A document whose stages have other names, also where it refers to them.

    In the name of an evaluation a prefix stands after `eval_`: `eval_sft` becomes `eval_prorag_sft`. Parts keep theirs.
    Display names follow the stages.
    """
    folders = {name: f"${{stage:{names.get(name, name)}}}" for name in stage_names(document.value)}
    value = with_folders(document.value, folders)
    stages = stages_of(Document(value))
    for stage in stages.values():
        if isinstance(stage, dict) and isinstance(like := stage.get("like"), str):
            stage["like"] = names.get(like, like)
    value["stages"] = {names.get(name, name): stage for name, stage in stages.items()}
    if isinstance(shown := value.get("names"), dict):
        value["names"] = {names.get(name, name): text for name, text in shown.items()}
    marks = {
        (key[0], names.get(str(key[1]), key[1]), *key[2:])
        if key[:1] in (("stages",), ("names",)) and key[1:]
        else key: mark
        for key, mark in document.marks.items()
    }
    return Document(value, marks)


def _prefixed(name: str, prefix: str) -> str:
    kind = "eval_" if name.startswith("eval_") else ""
    return f"{kind}{prefix}{name.removeprefix(kind)}"


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

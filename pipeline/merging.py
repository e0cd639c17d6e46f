"""Merging of documents of settings into one: each is merged over those before it, and stages may be `like` others.

A stage with `like: other` is the other stage, as all documents together leave it, with its own settings merged over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import ConfigError
from pipeline.locations import Key, Mark, dotted, linked, suggest
from pipeline.yaml_reader import Document, stages_of

_OTHER = {"target", "like"}  # keys of a map that is not what a reference or an earlier target made of it


def merge(documents: Sequence[Document]) -> Document:
    """Documents merged in order: maps merge, lists and values replace.

    In a component (a map with `target`) and in the schema's own maps `null` is a value. Any other map has named entries
    (stages, callbacks, rewards), and there `null` removes an entry that an earlier document defines.

    Raises:
        ConfigError: `null` for an entry that nothing defines, a map over a list or over a quoted part, or a `like` that
            names no stage or forms a cycle.
    """
    likes = _likes(documents)
    merged = Document()
    for new in documents:
        value = merge_maps(merged.value, _without_likes(new.value, likes), (), new.marks, merged.marks)
        merged = Document(value, merged.marks | new.marks)
    for name in likes.keys() & stages_of(merged).keys():
        stage = _stage(name, documents, likes, ())
        merged.value["stages"][name] = stage.value
        merged.marks.update(stage.marks)
    return merged


def _likes(documents: Sequence[Document]) -> dict[str, tuple[object, Mark]]:
    """The `like` of each stage that has one, with its line; the last document decides, `null` removes it."""
    likes: dict[str, tuple[object, Mark]] = {}
    for document in documents:
        for name, stage in stages_of(document).items():
            if isinstance(stage, dict) and "like" in stage:
                likes[name] = stage["like"], document.marks["stages", name, "like"]
    return {name: like for name, like in likes.items() if like[0] is not None}


def _without_likes(value: dict[str, Any], likes: Mapping[str, object]) -> dict[str, Any]:
    """Settings in which a stage with a `like` only keeps its place: it is merged once all others are."""
    stages = value.get("stages")
    if not isinstance(stages, dict):
        return value
    kept = {
        name: stage if not isinstance(stage, dict) else {} if name in likes else _without_like(stage)
        for name, stage in stages.items()
    }
    return value | {"stages": kept}


def _without_like(stage: dict[str, Any]) -> dict[str, Any]:
    return {name: setting for name, setting in stage.items() if name != "like"}


def _stage(name: str, documents: Sequence[Document], likes: Mapping[str, tuple[object, Mark]], trail: Key) -> Document:
    """A stage with all that its documents say, over the stage that it is like; the marks are those of its keys.

    A stage that a document removes can still be what another is like.
    """
    key: Key = ("stages", name)
    value: dict[str, Any] = {}
    marks: dict[Key, Mark] = {}
    if name in likes:
        other, mark = likes[name]
        _check_like(name, other, mark, documents, (*trail, name))
        inherited = _stage(str(other), documents, likes, (*trail, name))
        value = inherited.value
        marks = {(*key, *inner[2:]): at for inner, at in inherited.marks.items()}
    start = value
    removed = False
    for document in documents:
        if name not in stages_of(document):
            continue
        stage = stages_of(document)[name]
        if not isinstance(stage, dict):
            removed = stage is None
            continue
        value = merge_maps(start if removed else value, _without_like(stage), key, document.marks, marks)
        removed = False
        marks |= {inner: at for inner, at in document.marks.items() if inner[:2] == key}
    return Document(value, marks)


def _check_like(name: str, other: object, mark: str, documents: Sequence[Document], trail: Key) -> None:
    known = [str(stage) for document in documents for stage in stages_of(document)]
    if other not in known:
        raise ConfigError(f"unknown stage '{other}' at stages.{name}.like ({mark}){suggest(str(other), set(known))}")
    if other in trail:
        cycle = " -> ".join(map(str, (*trail[trail.index(other) :], other)))
        raise ConfigError(f"stages are like each other in a cycle: {cycle} ({mark})")


def merge_maps(
    base: dict[str, Any], new: dict[str, Any], key: Key, marks: Mapping[Key, str], earlier: Mapping[Key, str]
) -> dict[str, Any]:
    """`new`, whose lines are `marks`, over `base`; `earlier` has the keys of all documents so far."""
    if "target" in new or ("like" in new and "target" in base):
        base = {}  # another target has other arguments
    merged = dict(base)
    for name, value in new.items():
        here = (*key, name)
        old = base.get(name)
        if isinstance(value, dict):
            if isinstance(old, list):
                raise ConfigError(f"{dotted(here)} ({marks[here]}) is a list, which can only be replaced whole")
            if not _OTHER & value.keys() and (part := linked(old, here)):
                raise ConfigError(f"{dotted(here)} ({marks[here]}) is '{old}': override {dotted(part)} instead")
            merged[name] = merge_maps(old if isinstance(old, dict) else {}, value, here, marks, earlier)
        elif value is None and _is_named_map(key, merged):
            if name not in base and here not in earlier:
                hint = suggest(str(name), [str(entry) for entry in base])
                raise ConfigError(f"null for {dotted(here)} ({marks[here]}), which no base defines{hint}")
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def _is_named_map(key: Key, value: dict[str, Any]) -> bool:
    in_schema = not key or (key[0] == "stages" and (len(key) == 2 or (len(key) == 3 and key[2] == "trainer")))
    return not in_schema and not _OTHER & value.keys()

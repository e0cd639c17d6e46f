"""A file, its bases and `key=value` overrides become an `Experiment`. The only importer of omegaconf."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import (
    ConfigKeyError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from common.errors import ConfigError
from pipeline.display_names import check_display_names
from pipeline.documents import from_overrides, question_of, read_chain
from pipeline.locations import Key, Locations, leaves, suggest, undotted
from pipeline.merging import merge
from pipeline.part_copies import with_parts
from pipeline.plain_words import alternatives, check_words
from pipeline.references import require_small, with_written
from pipeline.schema import Experiment
from pipeline.yaml_reader import Document

_NAME = re.compile(r"\w[\w.-]*")
_COMPONENTS = {"data", "module", "callbacks"}
_LEAST = {"seed": 0, "devices": 1, "num_nodes": 1}
_PART = re.compile(r"\$\{parts[.\[]([\w-]+)")

# `${stage:NAME}` stands for a folder that only the store knows, so it passes through unchanged.
OmegaConf.register_resolver("stage", lambda name: f"${{stage:{name}}}", replace=True)


@dataclass(frozen=True)
class Configuration:
    """An experiment, every `${…}` but `${stage:…}` resolved, and where its settings were written.

    `written` holds the settings before `${…}` was resolved, `resolved` after it, without types; `changes` those that
    the file itself or the command line sets otherwise than the file's bases; `question` what the file asks in the
    comment at its head.
    """

    experiment: Experiment
    locations: Locations
    written: dict[str, Any]
    resolved: dict[str, Any]
    changes: dict[Key, Any]
    question: str


def load(path: Path | str, overrides: Iterable[str] = ()) -> Configuration:
    """Read an experiment file with its bases and overrides.

    Components are only resolved here; `pipeline.components.check` compares them with their targets.

    Raises:
        ConfigError: a file, key, type or reference is wrong; names the file and line.
    """
    documents = [*read_chain(Path(path)), from_overrides(overrides)]
    merged = merge(documents)
    whole = with_parts(merged)
    locations = Locations.of(whole.value, whole.marks)
    _check_stages(merged, documents, locations)
    _check_maps(whole.value, locations)
    require_small(whole.value, locations)
    resolved = _resolved(with_written(whole.value, locations), locations)
    experiment = _typed(resolved, whole.value.get("parts", {}), locations)
    _check_names(experiment, locations)
    _check_counts(experiment, locations)
    _check_parts(merged, documents, locations)
    check_display_names(experiment, documents[-2:], locations)
    return Configuration(experiment, locations, whole.value, resolved, _changes(documents), question_of(Path(path)))


def _resolved(written: dict[str, Any], locations: Locations) -> dict[str, Any]:
    """The settings but their parts, with references resolved."""
    root = written.get("data_root")
    root = os.environ.get("RAG_DATA") or MISSING if root is None else root
    with _explained(locations):
        settings: Any = OmegaConf.create({**written, "data_root": root})
        given = [name for name in settings if not OmegaConf.is_missing(settings, name)]
        resolved = {name: settings[name] for name in given if name not in ("stages", "parts", "names", "loggers")}
        for name in {"stages", "names", "loggers"} & {*given}:
            resolved[name] = OmegaConf.to_container(settings[name], resolve=True, throw_on_missing=True)
        return resolved


def _typed(resolved: dict[str, Any], parts: dict[str, Any], locations: Locations) -> Experiment:
    """Resolved settings in the types of the schema; components, which have none there, are not copied."""
    stages = resolved["stages"]
    with _explained(locations):
        bare = {
            name: {key: _without_components(key, item) for key, item in stage.items()} for name, stage in stages.items()
        }
        flat = {**resolved, "stages": bare, "loggers": dict.fromkeys(resolved.get("loggers", {}))}
        settings: Any = OmegaConf.merge(OmegaConf.structured(Experiment), flat)
        typed: Any = OmegaConf.to_object(settings.stages)
        names = [field.name for field in dataclasses.fields(Experiment) if field.name not in ("stages", "parts")]
        values: dict[str, Any] = {name: settings[name] for name in names}
        values |= {"names": dict(settings.names), "loggers": resolved.get("loggers", {})}
    check_words(resolved, Experiment, (), locations)
    for name, stage in typed.items():
        for key in _COMPONENTS & stages[name].keys():
            setattr(stage, key, stages[name][key])
    return Experiment(**values, stages=typed, parts=parts)


def _without_components(key: str, value: Any) -> Any:
    if key == "callbacks":
        return dict.fromkeys(value) if isinstance(value, dict) else value
    return None if key in _COMPONENTS else value


def _changes(documents: Sequence[Document]) -> dict[Key, Any]:
    *bases, own, overrides = documents
    known = {key for document in bases for key in document.marks}
    return {key: leaf for key, leaf in leaves(own.value) if key in known} | dict(leaves(overrides.value))


def convert(
    arguments: Mapping[str, Any], annotations: Mapping[str, Any], key: Key, locations: Locations
) -> dict[str, Any]:
    """Convert arguments to the types in a signature: `1` for a float becomes `1.0`, text for a Path a Path.

    An annotation that a configuration cannot express (a class, a callable) accepts anything.

    Raises:
        ConfigError: a value does not fit; names the key, the file and the line.
    """
    converted = {}
    for name, value in arguments.items():
        if (kind := _plain_kind(value, annotations[name])) is not None:
            converted[name] = kind(value)
            continue
        kind = _alternative(annotations[name], value)
        kind = kind if _supported(kind) else Any
        with _explained(locations, key):
            try:
                converted[name] = _converted(name, value, kind)
            except ValidationError as error:
                if error.full_key is not None:
                    raise
                # for a tuple, OmegaConf names neither key nor value
                raise ConfigError(f"{value!r} does not fit {kind} at {locations.at((*key, name))}") from error
    return converted


def _plain_kind(value: Any, annotation: Any) -> type | None:
    """The type of a plain value in an annotation, as of most values: OmegaConf takes milliseconds for each."""
    if type(value) not in (str, int, float, bool):
        return None
    kinds = list(alternatives(annotation))
    if type(value) in kinds:
        return type(value)
    if type(value) is str and any(get_origin(kind) is Literal and value in get_args(kind) for kind in kinds):
        return str
    return Path if type(value) is str and Path in kinds else None


def _converted(name: str, value: Any, kind: Any) -> Any:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]
    if isinstance(value, dict) and any(get_origin(each) is dict and get_args(each)[0] is int for each in kinds):
        value = {int(entry) if re.fullmatch(r"-?\d+", entry) else entry: item for entry, item in value.items()}
    schema = dataclasses.make_dataclass("Argument", [(name, kind, MISSING)])
    # a field's default cannot be mutable, hence the two steps
    checked: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), {name: value}))
    return getattr(checked, name)


def _alternative(annotation: Any, value: Any) -> Any:
    """Of `Path | list[Path]` the kind that fits a value: OmegaConf knows unions of single values alone."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    lists = [kind for kind in kinds if get_origin(kind) is list]
    single = [kind for kind in kinds if kind not in lists]
    if not lists or single == [NoneType]:
        return annotation
    return lists[0] if isinstance(value, list) else Union[tuple(single)]  # noqa: UP007 (made of values)


def _supported(annotation: Any) -> bool:
    try:
        OmegaConf.structured(dataclasses.make_dataclass("Argument", [("value", annotation, MISSING)]))
    except (OmegaConfBaseException, TypeError, ValueError):
        return False
    return True


@contextmanager
def _explained(locations: Locations, key: Key = ()) -> Iterator[None]:
    """Turn OmegaConf's errors into one line with the file and line of the key."""
    try:
        yield
    except OmegaConfBaseException as error:
        here = (*key, *undotted(str(error.full_key or "")))
        reason = str(error.msg or error).splitlines()[0]
        if isinstance(error, ConfigKeyError) and dataclasses.is_dataclass(error.object_type):
            accepted = [field.name for field in dataclasses.fields(error.object_type)]
            message = locations.unknown(here, accepted)
        elif isinstance(error, MissingMandatoryValue):
            message = f"missing '{here[-1]}' at {locations.at(here)}"
        elif isinstance(error, InterpolationToMissingValueError) and reason.endswith("data_root"):
            message = f"{locations.at(here)} needs data_root: set the environment variable RAG_DATA or data_root=FOLDER"
        else:
            message = f"{reason[0].lower()}{reason[1:]} at {locations.at(here)}"
        raise ConfigError(message) from error


def _check_maps(settings: Mapping[str, Any], locations: Locations) -> None:
    """Check what must be a map, for OmegaConf's own messages about it are hard to read."""
    stages = settings.get("stages")
    if stages is None:
        raise ConfigError(f"no stages in {locations.where(())}")
    maps = {(name,): settings.get(name, {}) for name in ("parts", "names", "loggers", "stages")}
    if isinstance(stages, dict):
        maps |= {("stages", name): stage for name, stage in stages.items()}
    for key, value in maps.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{locations.at(key)} must be a map, not {value!r}")


def _check_names(experiment: Experiment, locations: Locations) -> None:
    """Names of experiments and stages become folders."""
    names = {experiment.experiment: ("experiment",)} | {name: ("stages", name) for name in experiment.stages}
    for name, key in names.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' at {locations.at(key)} is not a valid name: use letters, digits, '_', '-' and '.'"
            )
    if not experiment.stages:
        raise ConfigError(f"no stages in {locations.where(())}")


def _check_stages(merged: Document, documents: list[Document], locations: Locations) -> None:
    """A stage without `data` in a file that has bases is a misspelt override of a stage of theirs."""
    stages = merged.value.get("stages")
    if not isinstance(stages, dict):
        return  # `_check_maps` reports it
    known: list[str] = []
    for document in documents:
        named = [str(name) for name in document.value.get("stages") or ()]
        for name in named if known else ():
            if name in stages and name not in known and not _names_data(stages[name]):
                raise ConfigError(f"unknown stage '{name}' ({locations.where(('stages', name))}){suggest(name, known)}")
        known += named


def _names_data(stage: object) -> bool:
    data = stage.get("data") if isinstance(stage, dict) else None
    return "target" in data if isinstance(data, dict) else data is not None


def _check_counts(experiment: Experiment, locations: Locations) -> None:
    for name, least in _LEAST.items():
        if (value := getattr(experiment, name)) < least:
            raise ConfigError(f"{locations.at((name,))} is {value}: it must be at least {least}")


def _check_parts(merged: Document, documents: list[Document], locations: Locations) -> None:
    """A part that the file itself or the command line sets is misspelt if nothing references it.

    The command line may choose otherwise than the file, and so leave parts of the file without use.
    """
    *_, own, overrides = documents
    used = _used(merged)
    for document in (own, overrides):
        for name in document.value.get("parts") or {}:
            if name not in merged.value["parts"] or name in used:
                continue
            if document is overrides or name not in _used(merge(documents[:-1])):
                raise ConfigError(f"nothing uses {locations.at(('parts', name))}{suggest(name, used)}")


def _used(merged: Document) -> set[str]:
    """The parts that stages reference, or parts that they reference."""
    parts = merged.value.get("parts") or {}
    used: set[str] = set()
    new = _referenced(merged.value["stages"])
    while new - used:
        used |= new
        new = _referenced([parts.get(name) for name in sorted(used)])
    return used


def _referenced(value: object) -> set[str]:
    texts = [(key, leaf) for key, leaf in leaves(value) if isinstance(leaf, str)]
    return {name for _, text in texts for name in _PART.findall(text)} | {
        text.partition(".")[0] for key, text in texts if key[-1:] == ("like",)
    }

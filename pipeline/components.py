"""A component becomes an object: import its target, check its arguments against the signature, innermost first.

A component is a map with `target: "package.module:name"` and that callable's keyword arguments. A class is
instantiated and a function called; a function that still lacks arguments is bound to those given, and whoever holds
it gives the rest (a reward gets episodes and context).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeGuard, Union, cast, get_args, get_origin, is_typeddict

from common.errors import ConfigError, UserError
from pipeline.fingerprints import canonical, is_path, stage_names
from pipeline.loader import convert
from pipeline.origins import Key, Origins, children, leaves, suggest
from pipeline.schema import Stage, TrainerSettings

_PLAIN = (str, bytes, bool, int, float, list, tuple, set, frozenset, dict, Path)  # what a YAML value can become


def is_component(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a setting is to be built."""
    return isinstance(value, dict) and "target" in value


def check_stage(stage: Stage, key: Key, origins: Origins) -> None:
    """Check all components of a stage.

    Raises:
        ConfigError: one is wrong, or the stage cannot be run; names the key, the file and the line.
    """
    check(stage.data, (*key, "data"), origins, whole=True)
    if stage.module is not None:
        check(stage.module, (*key, "module"), origins, whole=True)
        check(
            stage.trainer.strategy, (*key, "trainer", "strategy"), origins, whole=is_component(stage.trainer.strategy)
        )
        for name, callback in stage.callbacks.items():
            check(callback, (*key, "callbacks", name), origins, whole=True)
    elif stage.callbacks or stage.trainer != TrainerSettings():
        raise ConfigError(f"{origins.at(key)} has callbacks or trainer settings but no module to fit")
    elif absent := {"make", "merge"} - set(dir(locate(stage.data["target"], (*key, "data"), origins))):
        raise ConfigError(
            f"{origins.at((*key, 'data'))} has no {min(absent)}(): without a module, data must make records"
        )


def check(value: object, key: Key, origins: Origins, *, whole: bool = False) -> None:
    """Import the targets of every component in `value` and check their arguments; calls nothing.

    With `whole`, `value` must itself be a component that lacks nothing.

    Raises:
        ConfigError: a target, argument, type or input file is wrong; names the key, the file and the line.
    """
    if is_component(value):
        call = _Call.of(value, key, origins)
        if whole and call.missing:
            raise ConfigError(f"missing '{call.missing[0]}' at {origins.at(key)}")
    elif whole:
        raise ConfigError(f"no 'target' at {origins.at(key)}: write target: \"package.module:name\"")
    for name, item in children(value):
        check(item, (*key, name), origins)


def build(value: Any, key: Key, origins: Origins, memo: dict[str, Any]) -> Any:
    """The object that a setting stands for; equal components in one `memo` are one object.

    Raises:
        UserError: a constructor refused its arguments; the line of the component is added.
    """
    if isinstance(value, list):
        return [build(item, (*key, index), origins, memo) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if not is_component(value):
        return {name: build(item, (*key, name), origins, memo) for name, item in value.items()}
    identity = canonical(value)
    if identity not in memo:
        call = _Call.of(value, key, origins)
        nested = {name: build(item, (*key, name), origins, memo) for name, item in call.arguments.items()}
        try:
            memo[identity] = functools.partial(call.target, **nested) if call.missing else call.target(**nested)
        except UserError as error:
            raise type(error)(f"{error} [{origins.at(key)}]") from error
    return memo[identity]


def with_default(component: Mapping[str, Any], name: str, value: Any, key: Key, origins: Origins) -> dict[str, Any]:
    """The component with an argument that it takes and that is not given."""
    takes = name in _parameters(locate(component["target"], key, origins))[0]
    return ({name: value} if takes else {}) | dict(component)


def locate(target: object, key: Key, origins: Origins) -> Callable[..., Any]:
    """Import `package.module:name`.

    Raises:
        ConfigError: there is no such module or name.
    """
    at = origins.at((*key, "target"))
    path, colon, name = target.partition(":") if isinstance(target, str) else ("", "", "")
    if not (path and colon and name):
        raise ConfigError(f"{at} must read \"package.module:name\", not '{target}'")
    try:
        found: Any = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise ConfigError(f"{at} cannot be imported: {error}") from error
        raise ConfigError(f"no module '{path}' at {at}{suggest(path, _siblings(path))}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [other for other in dir(found) if not other.startswith("_")]
            raise ConfigError(f"no '{part}' in {path} at {at}{suggest(part, public)}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{at} is no class or function")
    return found


def _siblings(path: str) -> list[str]:
    """Modules beside one that is missing."""
    parent = path.rpartition(".")[0]
    try:
        folders = importlib.import_module(parent).__path__ if parent else None
    except (ModuleNotFoundError, AttributeError):
        return []
    return [f"{parent}.{module.name}".strip(".") for module in pkgutil.iter_modules(folders)] if parent else []


@dataclass(frozen=True)
class _Call:
    """A target, its arguments in the types it asks for, and the required ones that are not given."""

    target: Callable[..., Any]
    arguments: dict[str, Any]
    missing: list[str]

    @classmethod
    def of(cls, component: Mapping[str, Any], key: Key, origins: Origins) -> _Call:
        target = locate(component["target"], key, origins)
        return cls.to(target, {name: value for name, value in component.items() if name != "target"}, key, origins)

    @classmethod
    def to(cls, target: Callable[..., Any], given: dict[str, Any], key: Key, origins: Origins) -> _Call:
        parameters, is_open = _parameters(target)
        for name in given:
            if name not in parameters and not is_open:
                raise ConfigError(origins.unknown((*key, name), parameters))
        missing = [name for name, one in parameters.items() if one.default is one.empty and name not in given]
        if missing and inspect.isclass(target):
            requires = f"{target.__module__}:{target.__qualname__}"
            raise ConfigError(f"missing '{missing[0]}' at {origins.at(key)}, which {requires} requires")
        scope = getattr(inspect.unwrap(target.__init__ if inspect.isclass(target) else target), "__globals__", {})
        annotations = {name: _annotation(parameters[name].annotation, scope) for name in given if name in parameters}
        plain = {name: given[name] for name in annotations if not _holds_component(given[name])}
        for name in annotations.keys() - plain.keys():
            _check_kind(given[name], annotations[name], (*key, name), origins)
        for name, value in plain.items():
            if value is not None and _asks_for_component(annotations[name]):
                at = origins.at((*key, name))
                raise ConfigError(f'{at} must be a component, such as {{target: "package.module:name"}}, not {value!r}')
        converted = convert(plain, {name: annotations[name] for name in plain}, key, origins)
        for name, value in converted.items():
            _check_inputs(plain[name], value, (*key, name), origins)
        return cls(target, given | converted, missing)


def _parameters(target: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """What can be given by name, and whether any other name is accepted too."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError:  # written in C, without a signature
        return {}, True
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    is_open = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    return {one.name: one for one in parameters if one.kind in named}, is_open


def _annotation(annotation: Any, scope: dict[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope)
    except (NameError, AttributeError, TypeError, SyntaxError):  # imported for the type checker only
        return Any


def _asks_for_component(annotation: Any) -> bool:
    """Whether nothing that YAML can write is what an annotation means: a class of ours, a protocol, a callable."""
    if get_origin(annotation) in (Union, UnionType):
        return all(_asks_for_component(one) for one in get_args(annotation) if one is not NoneType)
    kind = get_origin(annotation) or annotation
    if kind is Any or not inspect.isclass(kind) or is_dataclass(kind) or is_typeddict(kind) or issubclass(kind, Enum):
        return False
    return getattr(kind, "_is_protocol", False) or not any(issubclass(plain, kind) for plain in _PLAIN)


def _check_kind(value: Any, annotation: Any, key: Key, origins: Origins) -> None:
    """What will be built must be of a kind that an argument takes: seen before any work, where it can be."""
    if is_component(value):
        target = locate(value["target"], key, origins)
        if inspect.isclass(target) and not _fits(target, annotation):
            raise ConfigError(f"{origins.at(key)} asks for {_named(annotation)}, which {value['target']} is not")
    elif isinstance(value, dict) and len(entry := get_args(annotation)) == 2 and is_dataclass(entry[1]):
        for name, item in value.items():  # settings that become this dataclass, a component among them
            if isinstance(item, dict) and not is_component(item):
                _Call.to(cast(Callable[..., Any], entry[1]), item, (*key, name), origins)


def _fits(target: type, annotation: Any) -> bool:
    """Whether an instance of a class may be what an annotation asks for; true where that cannot be told."""
    if get_origin(annotation) in (Union, UnionType):
        return any(_fits(target, one) for one in get_args(annotation))
    kind = get_origin(annotation) or annotation
    if kind is Any or not inspect.isclass(kind):
        return True
    if getattr(kind, "_is_protocol", False):
        asked = [name for one in kind.__mro__ for name, value in vars(one).items() if inspect.isfunction(value)]
        return all(name.startswith("_") or hasattr(target, name) for name in asked)
    return issubclass(target, kind)


def _named(annotation: Any) -> str:
    is_union = get_origin(annotation) in (Union, UnionType)
    kinds = [one for one in get_args(annotation) if one is not NoneType] if is_union else [annotation]
    return " or ".join(getattr(one, "__name__", str(one)) for one in kinds)


def _holds_component(value: object) -> bool:
    return is_component(value) or any(_holds_component(item) for _, item in children(value))


def _check_inputs(written: object, value: object, key: Key, origins: Origins) -> None:
    """An argument annotated Path is an input: there before any work, unless another stage makes it."""
    texts = {key: written, **dict(leaves(written, key))}
    for where, path in {key: value, **dict(leaves(value, key))}.items():
        if not isinstance(path, Path) or stage_names(str(path)):
            continue
        if not path.exists():
            raise ConfigError(f"no file or folder '{path}' at {origins.at(where)}")
        if not is_path(str(texts[where])):  # the fingerprint could not tell it from a name
            raise ConfigError(f"'{path}' at {origins.at(where)} must be written as a path: ./{path}")

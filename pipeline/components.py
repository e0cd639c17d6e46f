"""Components: import the target, check the arguments against its signature, build from the inside out.

A component is a map with `target: "package.module:name"` and that callable's keyword arguments. A class is instantiated
and a function called. A function with required arguments that the config does not set becomes a partial: its caller
passes the rest (a reward gets episodes and context).
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
from pipeline.failures import machine_failure
from pipeline.fingerprints import canonical, is_path, stage_names
from pipeline.loader import convert
from pipeline.locations import Key, Locations, children, leaves, suggest
from pipeline.moved_targets import MOVED
from pipeline.plain_words import check_words
from pipeline.schema import Stage, TrainerSettings
from pipeline.skeletons import CURRENT

# What a YAML value can be converted to.
_PLAIN = (str, bytes, bool, int, float, list, tuple, set, frozenset, dict, Path)


def is_component(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a setting is a component."""
    return isinstance(value, dict) and "target" in value


def check_stage(stage: Stage, key: Key, locations: Locations, known: set[str]) -> None:
    """Check all components of a stage, but those that are `known` to be right, to which these are added.

    Raises:
        ConfigError: a component is wrong, or the stage cannot be run; names the key, the file and the line.
    """
    strategy = stage.trainer.strategy
    check(stage.data, (*key, "data"), locations, known, whole=True)
    if stage.module is not None:
        check(stage.module, (*key, "module"), locations, known, whole=True)
        check(strategy, (*key, "trainer", "strategy"), locations, known, whole=is_component(strategy))
        for name, callback in stage.callbacks.items():
            check(callback, (*key, "callbacks", name), locations, known, whole=True)
    elif stage.callbacks or stage.trainer != TrainerSettings():
        raise ConfigError(f"{locations.at(key)} has callbacks or trainer settings but no module to fit")
    elif absent := {"make", "merge"} - set(dir(locate(stage.data["target"], (*key, "data"), locations))):
        raise ConfigError(
            f"{locations.at((*key, 'data'))} has no {min(absent)}(): without a module, data must make records"
        )


def check(value: object, key: Key, locations: Locations, known: set[str], *, whole: bool = False) -> None:
    """Import the targets of every component in `value` and check their arguments; calls nothing.

    With `whole`, `value` must itself be a component with all required arguments. Stages share most of their components,
    and one that is `known` to be right is not checked again.

    Raises:
        ConfigError: a target, argument, type or input file is wrong; names the key, the file and the line.
    """
    identity = ""
    if is_component(value):
        numbers = [locations.written(at) for at, leaf in leaves(value, key) if type(leaf) is int]  # `0x1F` is no text
        identity = canonical([whole, numbers, value])
        if identity in known:
            return
        call = _Call.of(value, key, locations)
        if whole and call.missing:
            raise ConfigError(f"missing '{call.missing[0]}' at {locations.at(key)}")
    elif whole:
        raise ConfigError(f"no 'target' at {locations.at(key)}: write target: \"package.module:name\"")
    for name, item in children(value):
        check(item, (*key, name), locations, known)
    if identity:
        known.add(identity)


def build(value: Any, key: Key, locations: Locations, memo: dict[str, Any]) -> Any:
    """Build the components in a setting; equal components are built once for a `memo`.

    Raises:
        UserError: a constructor raised it about its arguments; the line of the component is added.
    """
    if isinstance(value, list):
        return [build(item, (*key, index), locations, memo) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if not is_component(value):
        return {name: build(item, (*key, name), locations, memo) for name, item in value.items()}
    identity = canonical(value)
    if identity not in memo:
        call = _Call.of(value, key, locations)
        nested = {name: build(item, (*key, name), locations, memo) for name, item in call.arguments.items()}
        try:
            memo[identity] = functools.partial(call.target, **nested) if call.missing else call.target(**nested)
        except UserError as error:
            raise type(error)(f"{error} [{locations.at(key)}]") from error
    return memo[identity]


def with_default(component: Mapping[str, Any], name: str, value: Any, key: Key, locations: Locations) -> dict[str, Any]:
    """The component with a default for an argument, if its target has that argument."""
    takes = name in _parameters(locate(component["target"], key, locations))[0]
    return ({name: value} if takes else {}) | dict(component)


def locate(target: object, key: Key, locations: Locations) -> Callable[..., Any]:
    """Import `package.module:name`; within `read_or_imported`, read it from the source.

    Raises:
        ConfigError: the module or the name does not exist, or has moved.
    """
    at = locations.at((*key, "target"))
    if moved := MOVED.get(str(target)):
        raise ConfigError(f"'{target}' at {at} has moved: write '{moved}'")
    if (skeletons := CURRENT.get()) is not None:
        return skeletons.locate(str(target))
    path, colon, name = target.partition(":") if isinstance(target, str) else ("", "", "")
    if not (path and colon and name) or path.startswith("."):
        raise ConfigError(f"{at} must read \"package.module:name\", not '{target}'")
    try:
        target_object: Any = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise ConfigError(f"{at} cannot be imported: {error}") from error
        raise ConfigError(f"no module '{path}' at {at}{suggest(path, _siblings(path))}") from error
    except (Exception, SystemExit) as error:  # the module's own code is run
        if machine_failure(error):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{at} cannot be imported: {reason}") from error
    for part in name.split("."):
        if not hasattr(target_object, part):
            public = [other for other in dir(target_object) if not other.startswith("_")]
            raise ConfigError(f"no '{part}' in {path} at {at}{suggest(part, public)}")
        target_object = getattr(target_object, part)
    if not callable(target_object):
        raise ConfigError(f"{at} is not a class or function")
    return target_object


def _siblings(path: str) -> list[str]:
    """The modules of the package in which a module was looked for."""
    parent = path.rpartition(".")[0]
    try:
        folders = importlib.import_module(parent).__path__ if parent else None
    except (ModuleNotFoundError, AttributeError):
        return []
    return [f"{parent}.{module.name}".strip(".") for module in pkgutil.iter_modules(folders)] if parent else []


@dataclass(frozen=True)
class _Call:
    """A target, its converted arguments, and the required arguments that are missing."""

    target: Callable[..., Any]
    arguments: dict[str, Any]
    missing: list[str]

    @classmethod
    def of(cls, component: Mapping[str, Any], key: Key, locations: Locations) -> _Call:
        target = locate(component["target"], key, locations)
        return cls.to(target, {name: value for name, value in component.items() if name != "target"}, key, locations)

    @classmethod
    def to(cls, target: Callable[..., Any], written: dict[str, Any], key: Key, locations: Locations) -> _Call:
        parameters, is_open, closed = _parameters(target)
        for name in written:
            if name not in parameters and not is_open:
                raise ConfigError(locations.unknown((*key, name), parameters))
        if closed:
            raise ConfigError(
                f"{locations.at(key)} cannot be built: '{closed}' of {_name_of(target)} is positional-only"
            )
        required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
        missing = [name for name in required if name not in written]
        if missing and inspect.isclass(target):
            raise ConfigError(f"missing '{missing[0]}' at {locations.at(key)}, which {_name_of(target)} requires")
        scope = getattr(inspect.unwrap(target.__init__ if inspect.isclass(target) else target), "__globals__", {})
        annotations = {name: _annotation(parameters[name].annotation, scope) for name in written if name in parameters}
        plain = {name: written[name] for name in annotations if not _holds_component(written[name])}
        for name, value in written.items():
            check_words(value, annotations.get(name, Any), (*key, name), locations)
        for name in annotations.keys() - plain.keys():
            _check_kind(written[name], annotations[name], (*key, name), locations)
        for name, value in plain.items():
            if value is not None and _requires_component(annotations[name]):
                at = locations.at((*key, name))
                raise ConfigError(f'{at} must be a component, such as {{target: "package.module:name"}}, not {value!r}')
        converted = convert(plain, {name: annotations[name] for name in plain}, key, locations)
        for name, value in converted.items():
            _check_inputs(plain[name], value, (*key, name), locations)
        return cls(target, written | converted, missing)


def _parameters(target: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool, str | None]:
    """The arguments that can be passed by name, whether there is a `**kwargs`, and one required that has no name."""
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # written in C, without a signature
        return {}, True, None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {name: parameter for name, parameter in parameters.items() if parameter.kind in kinds}
    is_open = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    closed = (each for each in parameters.values() if each.kind is inspect.Parameter.POSITIONAL_ONLY)
    return named, is_open, next((each.name for each in closed if each.default is each.empty), None)


def _name_of(target: Callable[..., Any]) -> str:
    """`package.module:name`."""
    return f"{target.__module__}:{target.__qualname__}"


def _annotation(annotation: Any, scope: dict[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope, scope)  # twice: names of a skeleton are made on demand
    except (NameError, AttributeError, TypeError, SyntaxError):  # imported for the type checker only
        return Any


def _requires_component(annotation: Any) -> bool:
    """Whether an annotation can only be met by a component: a class of the suite, a protocol, a callable."""
    if get_origin(annotation) in (Union, UnionType):
        return all(_requires_component(kind) for kind in get_args(annotation) if kind is not NoneType)
    kind = get_origin(annotation) or annotation
    if kind is Any or not inspect.isclass(kind) or is_dataclass(kind) or is_typeddict(kind) or issubclass(kind, Enum):
        return False
    return getattr(kind, "_is_protocol", False) or not any(issubclass(plain, kind) for plain in _PLAIN)


def _check_kind(value: Any, annotation: Any, key: Key, locations: Locations) -> None:
    """Check before building that a nested component will be of the type that the argument is annotated with."""
    if is_component(value):
        target = locate(value["target"], key, locations)
        if inspect.isclass(target) and not _fits(target, annotation):
            raise ConfigError(f"{locations.at(key)} must be a {_named(annotation)}, which {value['target']} is not")
    elif isinstance(value, dict) and len(entry := get_args(annotation)) == 2 and is_dataclass(entry[1]):
        for name, item in value.items():  # maps that become this dataclass
            if isinstance(item, dict) and not is_component(item):
                _Call.to(cast(Callable[..., Any], entry[1]), item, (*key, name), locations)


def _fits(target: type, annotation: Any) -> bool:
    """Whether an instance of a class fits an annotation; true where that is unknown."""
    if get_origin(annotation) in (Union, UnionType):
        return any(_fits(target, kind) for kind in get_args(annotation))
    kind = get_origin(annotation) or annotation
    if kind is Any or not inspect.isclass(kind):
        return True
    if getattr(kind, "_is_protocol", False):
        methods = [name for base in kind.__mro__ for name, value in vars(base).items() if inspect.isfunction(value)]
        return all(name.startswith("_") or hasattr(target, name) for name in methods)
    return issubclass(target, kind)


def _named(annotation: Any) -> str:
    is_union = get_origin(annotation) in (Union, UnionType)
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType] if is_union else [annotation]
    return " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)


def _holds_component(value: object) -> bool:
    return is_component(value) or any(_holds_component(item) for _, item in children(value))


def _looked(path: Path, key: Key, locations: Locations) -> str:
    """The folders in which a relative path was looked for."""
    file = locations.where(key).rpartition(":")[0]  # of none on the command line
    folders = dict.fromkeys([*([Path(file).resolve().parent] if file else []), Path.cwd()])
    return "" if path.is_absolute() else f": looked in {' and '.join(map(str, folders))}"


def _check_inputs(written: object, value: object, key: Key, locations: Locations) -> None:
    """An argument annotated Path is an input: it must exist before any work, unless another stage makes it."""
    texts = {key: written, **dict(leaves(written, key))}
    for where, path in {key: value, **dict(leaves(value, key))}.items():
        if not isinstance(path, Path) or stage_names(str(path)):
            continue
        if not path.exists():
            raise ConfigError(f"no file or folder '{path}' at {locations.at(where)}{_looked(path, where, locations)}")
        if not is_path(str(texts[where])):  # else the fingerprint would take it for a name
            raise ConfigError(f"'{path}' at {locations.at(where)} must be written as a path: ./{path}")

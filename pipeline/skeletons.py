"""Skeletons of modules: their classes, signatures and types, from the source and Python's own library alone.

Importing the components of an experiment takes ten seconds, most of them PyTorch, Lightning and Transformers, and a
check of its settings needs none of it. Statements run when a name is first asked for: classes, functions, defaults and
type aliases. A class of an installed library is a stand-in. What cannot be read is `Unread`.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import gc
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, TypeVar

from common.hashes import stamp
from pipeline.provenance import is_installed

T = TypeVar("T")
log = logging.getLogger(__name__)
_ON_METHODS = {"property", "staticmethod", "classmethod"}
_ON_CLASSES = {"dataclass", "dataclasses.dataclass", "runtime_checkable"}
_KEEP_SIGNATURES = {"contextmanager", "functools.cache", "functools.wraps", "torch.no_grad", "torch.inference_mode"}
_PLAIN = (ast.Constant, ast.Name, ast.Attribute, ast.expr_context, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator)
_PLAIN_CONTAINERS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Subscript)
_LATER = ast.Constant(...)  # a default that is there, whatever it is


class Unread(Exception):
    """A name, module or statement that only an import could explain."""


class Skeletons:
    """The modules that one check reads, each once."""

    def __init__(self) -> None:
        self._modules: dict[str, _Names] = {}
        self.spec = functools.cache(_spec)

    def locate(self, target: str) -> Any:
        """The class or function `package.module:name`.

        Raises:
            Unread: the source does not give it, or it is not there.
        """
        path, _, name = target.partition(":")
        first, *rest = name.split(".")
        try:
            found = functools.reduce(getattr, rest, self.module(path)[first])
        except Exception as error:  # whatever the statements raise
            raise Unread(target) from error
        if not callable(found) or _is_stand_in(found):
            raise Unread(target)
        return found

    def module(self, name: str) -> _Names:
        """The names of a module; those of the suite's own that it imports are read with it.

        Raises:
            Unread: the module, or one that it imports, is missing or no Python.
        """
        if name not in self._modules:
            self._modules[name] = names = _Names(name, self)
            sys.modules[names["__name__"]] = names.module  # where dataclasses and typing look names up
            names.read_imports()
        return self._modules[name]

    def forget(self) -> None:
        """Leave no trace in `sys.modules`."""
        for names in self._modules.values():
            sys.modules.pop(names["__name__"], None)


class _Names(dict[str, Any]):
    """The global names of a module, each made from its source when it is first asked for."""

    def __init__(self, module: str, skeletons: Skeletons) -> None:
        super().__init__(__name__=f"<{module}>", __builtins__=builtins)
        self._skeletons = skeletons
        self.module: Any = _Module(self)
        file = _file(module, skeletons.spec(module))
        self._package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        self._own = module.partition(".")[0]
        self._statements = _parsed(file, *stamp(file))

    def read_imports(self) -> None:
        """Read the suite's modules that this one imports, and find the libraries, which are not read.

        Raises:
            Unread: one is missing.
        """
        if is_installed(self._skeletons.spec(self._own)):
            return
        for statement in self._statements.values():
            if isinstance(statement, ast.ImportFrom):
                path = self._absolute(statement)
                if self._readable(path):
                    self._skeletons.module(path)
            elif isinstance(statement, ast.Import):
                self._skeletons.spec(statement.names[0].name)

    def __missing__(self, name: str) -> Any:
        statement = self._statements[name]
        if isinstance(statement, ast.Import):
            path = next(alias.name for alias in statement.names if _bound(alias) == name)
            self[name] = importlib.import_module(path) if _is_python(path) else _stand_in(path)
        elif isinstance(statement, ast.ImportFrom):
            original = next(alias.name for alias in statement.names if _bound(alias) == name)
            self[name] = self._imported(self._absolute(statement), original)
        else:
            self._run(_stripped(statement))
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Lookup by name, as dataclasses look for `ClassVar`."""
        try:
            return self[name]
        except KeyError:
            return default

    def _imported(self, path: str, name: str) -> Any:
        if _is_python(path):
            return getattr(importlib.import_module(path), name)
        return self._skeletons.module(path)[name] if self._readable(path) else _stand_in(f"{path}.{name}")

    def _readable(self, path: str) -> bool:
        """Whether a module is read: those of this one's package, and any that is no installed library."""
        top = path.partition(".")[0]
        return not _is_python(top) and (top == self._own or not is_installed(self._skeletons.spec(top)))

    def _absolute(self, statement: ast.ImportFrom) -> str:
        return importlib.util.resolve_name("." * statement.level + (statement.module or ""), self._package)

    def _run(self, statement: ast.stmt) -> None:
        """Run a statement; the body of a class finds a global name only once it is there."""
        module = ast.fix_missing_locations(ast.Module([statement], []))
        code = compile(module, self["__name__"], "exec", __future__.annotations.compiler_flag, dont_inherit=True)
        while True:
            try:
                return exec(code, self, self)
            except NameError as error:
                if error.name in self or error.name not in self._statements:
                    raise
                self[error.name]


class _Module:
    """A module's place in `sys.modules`."""

    __slots__ = ("_names",)

    def __init__(self, names: _Names) -> None:
        self._names = names

    @property
    def __dict__(self) -> _Names:  # type: ignore[override]
        return self._names


class _StandIn(type):
    """The type of stand-ins for the classes and modules of installed libraries."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_") or not _is_stand_in(cls):  # but a class of ours, whose base is a stand-in
            raise AttributeError(name)
        return _stand_in(f"{cls.__name__}.{name}")

    def __getitem__(cls, _: object) -> Any:
        return cls


@functools.cache
def _stand_in(name: str) -> _StandIn:
    return _StandIn(name, (), {"_library": True})


def _is_stand_in(value: object) -> bool:
    return isinstance(value, _StandIn) and "_library" in vars(value)


CURRENT: ContextVar[Skeletons | None] = ContextVar("skeletons", default=None)


@contextmanager
def reading() -> Iterator[Skeletons]:
    """Have components located in their source, not imported; each time the files are what they are by then."""
    skeletons = Skeletons()
    token, collects = CURRENT.set(skeletons), gc.isenabled()
    gc.disable()  # it would look for circles in syntax trees
    try:
        yield skeletons
    finally:
        if collects:
            gc.enable()
        CURRENT.reset(token)
        skeletons.forget()


def read_or_imported(check: Callable[[], T]) -> T:
    """Result of a check that reads signatures from the source; if it refuses anything, of one that imports targets.

    An import takes ten seconds, and has the last word: only its refusals are raised.
    """
    try:
        with reading():
            return check()
    except Exception:
        log.debug("not read from the source", exc_info=True)
    return check()


def _is_python(path: str) -> bool:
    return path.partition(".")[0] in sys.stdlib_module_names


def _spec(module: str) -> ModuleSpec:
    """Import spec of a module's package, found without importing it."""
    with suppress(ValueError):
        if (spec := importlib.util.find_spec(module.partition(".")[0])) is not None:
            return spec
    raise Unread(module)


def _file(module: str, spec: ModuleSpec) -> Path:
    _, *rest = module.split(".")
    if not rest and spec.origin and spec.has_location:
        return Path(spec.origin)
    for place in spec.submodule_search_locations or ():
        path = Path(place, *rest)
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return file
    raise Unread(module)


@functools.cache
def _parsed(file: Path, *_: int) -> dict[str, ast.stmt]:
    """The statements of a file as it is, by the names that they bind."""
    try:
        return dict(_statements(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError) as error:
        raise Unread(str(file)) from error


def _statements(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The statements at the top of a module by the names that they bind."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from ((_bound(alias), statement) for alias in statement.names)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            yield from ((name.id, statement) for name in names if isinstance(name.ctx, ast.Store))


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _stripped(statement: ast.stmt, within: bool = False) -> ast.stmt:
    """A statement without calls, but those that make fields of dataclasses."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        statement.decorator_list = _decorators(statement.decorator_list, _ON_METHODS, within)
        statement.body = [ast.Pass()]  # nothing is called
        arguments = statement.args
        arguments.defaults = [_value(default) for default in arguments.defaults]
        arguments.kw_defaults = [default and _value(default) for default in arguments.kw_defaults]
    elif isinstance(statement, ast.ClassDef):
        kept = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
        statement.body = [_stripped(each, True) for each in statement.body if isinstance(each, kept)] or [ast.Pass()]
        statement.decorator_list = _decorators(statement.decorator_list, _ON_CLASSES, within)
    elif within and isinstance(statement, ast.Assign | ast.AnnAssign):
        statement.value = statement.value and _value(statement.value)  # type: ignore[assignment]
    return statement


def _decorators(decorators: list[ast.expr], kept: set[str], within: bool) -> list[ast.expr]:
    names = {ast.unparse(each).partition("(")[0]: each for each in decorators}
    if not within and (other := names.keys() - kept - _KEEP_SIGNATURES):
        raise Unread(f"@{min(other)}")
    return [each for name, each in names.items() if name in kept]


def _value(node: ast.expr) -> ast.expr:
    is_field = isinstance(node, ast.Call) and ast.unparse(node.func) in ("field", "dataclasses.field")
    plain = all(isinstance(each, _PLAIN + _PLAIN_CONTAINERS) for each in ast.walk(node))
    return node if is_field or plain else _LATER

"""Provenance of an artifact: the code and the libraries that made it, and what its components report."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_SOURCES = ("train.py", "callbacks", "common", "datamodules", "envs", "evaluation", "modules", "pipeline", "systems")
_LIBRARIES = ("torch", "lightning", "transformers", "peft", "numpy", "bm25s", "faiss-cpu", "faiss-gpu")
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


def provenance(settings: object) -> dict[str, Any]:
    """Library versions, git commit and a hash of the source code, for a stage with these settings."""
    return {"versions": dict(_versions()), "commit": _commit(), "source": source_hash(settings)}


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def facts_of(parts: Iterable[object]) -> dict[str, str]:
    """The `manifest_facts` of components once a stage is done, such as the engine that sampled."""
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, text in getattr(part, "manifest_facts", {}).items():
            found.setdefault(name, {})[text] = None
    return {name: "; ".join(texts) for name, texts in sorted(found.items())}


def source_hash(settings: object, root: Path = _ROOT) -> str:
    """A hash of the code that can change an artifact: the suite's .py files but tests, examples and benchmarks, and
    those of every other package or file that a target in the settings names, unless it is an installed library.
    """
    digest = _of_the_suite(root).copy()
    for name in sorted({target.partition(":")[0].partition(".")[0] for target in _targets(settings)} - {*_SOURCES}):
        for file in _own_code(name):
            digest.update(f"{name}/{file.name}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@functools.cache
def _of_the_suite(root: Path) -> Any:
    """The digest of the suite's code, read once: it is what this process has imported."""
    digest = hashlib.sha256()
    for file in _code(root, _SOURCES):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return digest


def _code(root: Path, names: tuple[str, ...]) -> list[Path]:
    """The .py files of folders and files under a root."""
    return sorted(file for name in names for file in [root / name, *(root / name).rglob("*.py")] if file.is_file())


def _own_code(name: str) -> list[Path]:
    """The .py files of a package, or of a module that is one file; none where it is an installed library."""
    spec = importlib.util.find_spec(name)  # imports nothing: those of a finished stage are not imported
    if spec is None:
        return []
    return _code(Path(), tuple(_own_places(spec)))


def is_installed(spec: ModuleSpec) -> bool:
    """Whether a package or module is an installed library, or a part of Python."""
    return not _own_places(spec)


def _own_places(spec: ModuleSpec) -> list[str]:
    """The folders of a package, or the file of a module, that do not lie where libraries are installed."""
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    return [place for place in places if not any(Path(place).is_relative_to(folder) for folder in _INSTALLED)]


def _targets(settings: object) -> Iterator[str]:
    """Every `target` in nested settings."""
    if isinstance(settings, dict):
        if isinstance(target := settings.get("target"), str):
            yield target
        settings = list(settings.values())
    if isinstance(settings, list | tuple):
        for value in settings:
            yield from _targets(value)


@functools.cache
def _commit() -> str | None:
    """The git commit of the source, with a `+` where files differ from it; None outside a repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        # `git describe --dirty` takes a lock, which would stay behind where a full disk or a signal ends it.
        changed = _git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+" if changed else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()

"""`agent.yaml` of an exported folder: how the model is asked, for the suite and for programs without it."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from common.errors import ConfigError, DataError
from common.manifests import MANIFEST, load_manifest
from envs.interfaces import AgentFormat
from envs.types import Limits
from modules.export.plain_turns import NotPlain, plain_turns

ENVIRONMENT = "envs.retrieval:RetrievalEnvironment"
HERE = "."  # this folder, as the tokenizer of the exported format
_LIMITS = ("turns", "turn_tokens", "observation_tokens", "total_tokens")


def agent_of(artifact: Path, model: Path) -> dict[str, Any]:
    """The content of `agent.yaml` for a stage's model: its environment, and its format as text where that is possible.

    The environment is that of the stage's rollout, else one of its own, else that of the nearest stage that made its
    data. Without one, the format is unknown.

    Raises:
        ConfigError: no stage that it came from has an environment, or the format cannot be built.
    """
    found = next(filter(None, map(_environment, ancestry(artifact))), None)
    if found is None:
        raise ConfigError(
            f"{artifact}: neither the stage nor what it was trained on has an environment, so no format is known: "
            "export the stage of a policy"
        )
    protocol: AgentFormat = _built(found["protocol"] | {"tokenizer": str(model)})
    limits = Limits(**{name: value for name, value in (found.get("limits") or {}).items() if name != "target"})
    retriever = found.get("retriever")
    agent: dict[str, Any] = {
        "format": str(found["protocol"]["target"]).rpartition(":")[2],
        "instruction": getattr(protocol, "instruction", ""),
        "top_k": found.get("top_k", 3),
        "limits": {name: getattr(limits, name) for name in _LIMITS},
    }
    try:
        if found.get("compressor"):
            raise NotPlain("a compressor shortens its passages")
        agent |= plain_turns(protocol, limits)
    except NotPlain as reason:
        agent["not_plain"] = str(reason)
    environment = {name: value for name, value in found.items() if name != "retriever"}
    environment["protocol"] = found["protocol"] | {"tokenizer": HERE}
    return agent | {"environment": without_folders(environment), "retriever": without_folders(retriever)}


def ancestry(artifact: Path) -> Iterator[Path]:
    """A finished stage and those that it came from, as far as they are in its store, each once, the nearest first."""
    seen, waiting = {artifact.name}, [artifact]
    while waiting:
        yield (folder := waiting.pop(0))
        for used in load_manifest(folder, "inputs")["inputs"].values():
            before = artifact.parent / used["artifact"]
            if before.name not in seen and (before / MANIFEST).is_file():
                seen.add(before.name)
                waiting.append(before)


def read_settings(artifact: Path) -> dict[str, Any]:
    """The settings that a finished stage was made with.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = artifact / "config.yaml"
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(settings, dict):
        raise DataError(f"{path} is damaged: remove {artifact} to make it again")
    return settings


def components(value: Any) -> Iterator[dict[str, Any]]:
    """Every component in nested settings, the outer ones first."""
    if isinstance(value, Mapping):
        if "target" in value:
            yield dict(value)
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from components(item)


def without_folders(value: Any) -> Any:
    """Settings in which an absolute path is the name of its file or folder: it says nothing on another machine."""
    if isinstance(value, Mapping):
        return {name: without_folders(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return os.path.basename(value.rstrip("/")) if isinstance(value, str) and os.path.isabs(value) else value


def _environment(artifact: Path) -> dict[str, Any] | None:
    """The environment of a stage; that of its rollout where it has several."""
    settings = read_settings(artifact)
    rollout = (settings.get("callbacks") or {}).get("rollout")
    return next((one for one in components([rollout, settings]) if one["target"] == ENVIRONMENT), None)


def _built(value: Any) -> Any:
    """A format from its settings, its parts first."""
    if not isinstance(value, Mapping):
        return value
    arguments = {key: _built(item) for key, item in value.items() if key != "target"}
    if "target" not in value:
        return arguments
    module, _, name = str(value["target"]).partition(":")
    try:
        target = getattr(importlib.import_module(module), name)
        inspect.signature(target).bind(**arguments)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"the format {value['target']} cannot be built: {error}") from error
    return target(**arguments)

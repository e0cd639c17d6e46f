"""Fingerprints: a hash of all that a stage's result depends on (settings, other stages, input files, hub revisions).

It is computed from the settings alone, without importing a target: checking a finished experiment takes no time.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.hashes import FileHashes, stamp, visible_files
from pipeline.locations import Key, children, leaves
from pipeline.schema import Experiment, Stage, TrainerSettings

_STAGE = re.compile(r"\$\{stage:([\w.-]+)\}")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_KEYS = {"model": "model", "policy": "model", "encoder": "model", "tokenizer": "model", "hub": "dataset"}
_SUFFIX = re.compile(r"\.\w+")
NO_INPUT = ("cache", "scratch", "uri")  # a run fills or locks them, which would change the hash of the next run


def stage_names(value: object) -> list[str]:
    """The stages that a setting references as `${stage:NAME}`, each once, in order."""
    texts = [value] if isinstance(value, str) else [leaf for _, leaf in leaves(value) if isinstance(leaf, str)]
    return list(dict.fromkeys(name for text in texts for name in _STAGE.findall(text)))


def with_folders(value: Any, folders: Mapping[str, str | Path]) -> Any:
    """The setting with every `${stage:NAME}` replaced by that stage's entry in `folders`."""
    if isinstance(value, str):
        return _STAGE.sub(lambda match: str(folders[match[1]]), value)
    if isinstance(value, dict):
        return {name: with_folders(item, folders) for name, item in value.items()}
    return [with_folders(item, folders) for item in value] if isinstance(value, list) else value


def is_path(text: str) -> bool:
    """Whether a text is written as a path: with a separator or a file suffix. A bare `test` is a name."""
    return os.sep in text or _SUFFIX.fullmatch(os.path.splitext(text)[1]) is not None


def canonical(value: object) -> str:
    """The same text for equal settings, whatever the order of their keys."""
    return json.dumps(_sorted(value), ensure_ascii=False, separators=(",", ":"))


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _sorted(value[name]) for name in sorted(value, key=str)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def digest(settings: object) -> str:
    """sha256 of canonical settings."""
    return hashlib.sha256(canonical(settings).encode()).hexdigest()


def settings_of(stage: Stage) -> dict[str, Any]:
    """The settings of a stage that its result depends on."""
    standard = TrainerSettings()
    trainer = {name: value for name, value in vars(stage.trainer).items() if value != getattr(standard, name)}
    trainer.pop("log_every_n_steps", None)
    return {"module": stage.module, "data": stage.data, "callbacks": stage.callbacks, "trainer": trainer}


def fingerprint(pinned: dict[str, Any], experiment: Experiment, stages: Mapping[str, str]) -> str:
    """The hash of all that a stage's result depends on: its settings with `Inputs.pinned`, and the run's.

    `stages` holds the fingerprints of the stages it references. Their names count: a fit's random numbers follow from
    them.
    """
    run = {"seed": experiment.seed, "world_size": experiment.world_size}
    named = {name: f"{name}-{made}" for name, made in stages.items()}
    return digest(with_folders(pinned, named) | run)


class Inputs:
    """Replaces inputs in settings: files and folders by a hash of their content, hub ids by their revision.

    A text is an input if it is written as a path, or stands where a model's name may, and the file or folder
    exists; not under the keys `cache` and `scratch`, and not inside `output`. No target is imported to find out.
    Content hashes are remembered in `<output>/inputs.json`.
    """

    def __init__(self, output: Path) -> None:
        self._output = output.resolve()
        self._hashes = FileHashes(output / "inputs.json")
        self._revisions: dict[tuple[str, ...], str] = {}

    def again(self) -> Inputs:
        """A copy that reads its inputs again; a hub id whose revision was not found keeps its name."""
        again = copy.copy(self)
        again._revisions = {key: found for key, found in self._revisions.items() if found == key[-1]}
        return again

    def pinned(self, value: Any, key: Key = ()) -> Any:
        """The setting with every input replaced."""
        if isinstance(value, dict):
            revision = value.get("revision")
            return {
                name: self._hub(item, _HUB_KEYS[name], revision)
                if name in _HUB_KEYS and _is_hub_id(item)
                else self.pinned(item, (*key, name))
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self.pinned(item, (*key, index)) for index, item in children(value)]
        if isinstance(value, str) and self._is_input(value, key[-1] if key else None):
            return f"sha256:{self.content(Path(value))}"
        return value

    def stamps(self, value: object) -> dict[str, str]:
        """For each file or folder in a setting a text that differs where a file was replaced, also by an equal one."""
        texts = {leaf for key, leaf in leaves(value) if isinstance(leaf, str) and self._is_input(leaf, key[-1])}
        return {text: digest([[name, stamp(file)] for name, file in _files(Path(text))]) for text in sorted(texts)}

    def content(self, path: Path) -> str:
        """sha256 of a file, or of all files of a folder with their relative names; hidden ones are left out."""
        if path.is_file():
            return self._hashes.of(path)
        return digest([[name, self._hashes.of(file)] for name, file in _files(path)])

    def save(self) -> None:
        """Write the memory of content hashes."""
        self._hashes.save()

    def _is_input(self, text: str, name: str | int | None) -> bool:
        if name in NO_INPUT or not any(character.isalnum() for character in text):
            return False
        if not (is_path(text) or name in _HUB_KEYS) or not os.path.exists(text):
            return False
        return not Path(text).resolve().is_relative_to(self._output)

    def _hub(self, name: str, kind: str, revision: object) -> str:
        key = (kind, name, str(revision or "main"))
        if key not in self._revisions:
            self._revisions[key] = _hub_revision(*key)
        return f"{name}@{self._revisions[key]}"


def _is_hub_id(value: object) -> bool:
    if not isinstance(value, str) or value.startswith("models/"):  # this project's own folder, downloaded or not
        return False
    return bool(_HUB_ID.fullmatch(value)) and not os.path.exists(value)


def _hub_revision(kind: str, name: str, revision: str) -> str:
    """The commit of a hub id, from the local Hugging Face cache or else from the hub.

    Where neither has it, no stage could have used it, and the name of the revision stands for the commit.
    """
    import httpx2
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError

    reference = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}" / "refs" / revision
    if reference.is_file():
        return reference.read_text(encoding="utf-8").strip()
    try:
        return HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=5).sha or revision
    except (OSError, httpx2.HTTPError, HFValidationError, ImportError, ValueError):  # the last two: an unusable proxy
        return revision


def _files(path: Path) -> list[tuple[str, Path]]:
    """A file, or the files of a folder, in the order of their relative names."""
    files = [path] if path.is_file() else visible_files(path)
    return sorted((file.relative_to(path).as_posix(), file) for file in files)

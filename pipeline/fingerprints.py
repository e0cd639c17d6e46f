"""Fingerprints: a hash of all that a stage's result depends on (settings, other stages, input files, hub revisions).

It is computed from the settings alone, without importing a target: checking a finished experiment takes no time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.files import atomic_write
from pipeline.origins import Key, children, leaves
from pipeline.schema import Experiment, Stage, TrainerSettings

_STAGE = re.compile(r"\$\{stage:([\w.-]+)\}")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_KEYS = {"model": "model", "policy": "model", "encoder": "model", "tokenizer": "model", "hub": "dataset"}
_SUFFIX = re.compile(r"\.\w+")
_NO_INPUT = ("cache", "scratch")  # a run fills them, which would change the hash of the next run


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


def fingerprint(stage: Stage, experiment: Experiment, inputs: Inputs, stages: Mapping[str, str]) -> str:
    """The hash of all that a stage's result depends on; `stages` holds those of the stages it references.

    The name of a referenced stage counts: a fit's random numbers follow from it.
    """
    standard = TrainerSettings()
    trainer = {name: value for name, value in vars(stage.trainer).items() if value != getattr(standard, name)}
    trainer.pop("log_every_n_steps", None)
    settings = {"module": stage.module, "data": stage.data, "callbacks": stage.callbacks, "trainer": trainer}
    run = {"seed": experiment.seed, "world_size": experiment.world_size}
    named = {name: f"{name}-{made}" for name, made in stages.items()}
    return digest(with_folders(inputs.pinned(settings), named) | run)


class Inputs:
    """Replaces inputs in settings: files and folders by a hash of their content, hub ids by their revision.

    A text is an input if it is written as a path, or stands where a model's name may, and the file or folder
    exists; not under the keys `cache` and `scratch`, and not inside `output`. No target is imported to find out.
    Content hashes are cached by path, size and modification time in `<output>/inputs.json`.
    """

    def __init__(self, output: Path) -> None:
        self._output = output.resolve()
        self._cache = output / "inputs.json"
        self._known: dict[str, list[Any]] = _read_cache(self._cache)
        self._changed = False
        self._revisions: dict[tuple[str, ...], str] = {}

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

    def content(self, path: Path) -> str:
        """sha256 of a file, or of all files of a folder with their relative names; hidden ones are left out."""
        if path.is_file():
            return self._file(path)
        names = sorted(file.relative_to(path).as_posix() for file in _visible_files(path))
        return digest([[name, self._file(path / name)] for name in names])

    def save(self) -> None:
        """Write the cache of content hashes."""
        if self._changed:
            with atomic_write(self._cache) as f:
                json.dump(self._known, f, indent=0, sort_keys=True)
            self._changed = False

    def _is_input(self, text: str, name: str | int | None) -> bool:
        if name in _NO_INPUT or not any(character.isalnum() for character in text):
            return False
        if not (is_path(text) or name in _HUB_KEYS) or not os.path.exists(text):
            return False
        return not Path(text).resolve().is_relative_to(self._output)

    def _file(self, path: Path) -> str:
        name, status = str(path.resolve()), path.stat()
        size, modified, known = self._known.get(name, (None, None, ""))
        if (size, modified) != (status.st_size, status.st_mtime_ns):
            with open(path, "rb") as f:
                known = hashlib.file_digest(f, "sha256").hexdigest()
            self._known[name] = [status.st_size, status.st_mtime_ns, known]
            self._changed = True
        return known

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


def _visible_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _visible_files(path)
        elif path.is_file():
            yield path


def _read_cache(path: Path) -> dict[str, list[Any]]:
    """The cached hashes; empty where the file is missing or damaged, as they can be computed again."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    whole = isinstance(known, dict) and all(isinstance(entry, list) and len(entry) == 3 for entry in known.values())
    return known if whole else {}

"""Reading the manifest of a finished stage, with a check of what its readers need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import DataError

MANIFEST = "manifest.json"
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("kind", "source"), str),
    **dict.fromkeys(("inputs", "versions", "metrics", "files", "resumed_by", "stamps"), dict),
    "costs": (dict, type(None)),
    "commit": (str, type(None)),
    "rewritten": list,
    "seconds": (int, float),
}


def load_manifest(folder: Path, *needed: str) -> dict[str, Any]:
    """An artifact's `manifest.json`, with at least the keys that are `needed`.

    Raises:
        DataError: it is missing or damaged; says what to remove.
    """
    return load_record(folder / MANIFEST, folder, *needed)


def load_record(path: Path, artifact: Path, *needed: str) -> dict[str, Any]:
    """A JSON object of an artifact, with at least the keys that are `needed`.

    Raises:
        DataError: it is missing or damaged; says what to remove.
    """
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError):
        record = None
    if wrong := _wrong(record, needed):
        raise DataError(f"{path} is damaged ({wrong}): remove {artifact} to make it again")
    return record


def _wrong(record: Any, needed: tuple[str, ...]) -> str:
    """Fault of a record; empty where there is none."""
    if not isinstance(record, dict) or not record:
        return "no JSON object" if not isinstance(record, dict) else "empty"
    if missing := [key for key in needed if key not in record]:
        return f"no {missing[0]!r}"
    kinds = [key for key, kind in _KINDS.items() if key in record and not isinstance(record[key], kind)]
    if kinds:
        return f"{kinds[0]!r} is a {type(record[kinds[0]]).__name__}"
    for name, used in record.get("inputs", {}).items():
        if not isinstance(used, dict) or not isinstance(used.get("artifact"), str):
            return f"no artifact of input {name!r}"
    for name, entry in record.get("files", {}).items():
        if not isinstance(entry, list) or list(map(type, entry)) != [int, str]:
            return f"no size and hash of {name!r}"
    return ""

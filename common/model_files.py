"""Files of a model's folder in the Hugging Face format, checked for damage before a library reads them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from common.errors import DataError

_SETTINGS = ("*config.json", "*.index.json", "tokenizer.json")
_NEEDED = {"tokenizer.json": ("model", "added_tokens")}


def check_model_files(folder: Path) -> None:
    """Check that the folder's weights are whole and that its settings are JSON objects.

    Raises:
        DataError: a file is damaged; names it.
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np"):
                pass  # its header gives the size of the file
        except SafetensorError as error:
            raise _damaged(path, str(error)) from error
    for path in sorted(path for pattern in _SETTINGS for path in folder.glob(pattern)):
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise _damaged(path, str(error)) from error
        if not isinstance(settings, dict):
            raise _damaged(path, "no JSON object")
        if missing := [key for key in _NEEDED.get(path.name, ()) if key not in settings]:
            raise _damaged(path, f"no {missing[0]!r}")


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} is damaged ({' '.join(why.split())}): replace the file, or make {path.parent} again")

"""Checkpoints that a killed fit has left: read once to see that they are whole, for torch compares no checksums."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from common.errors import DataError


def check_checkpoints(folder: Path) -> None:
    """Check the checkpoints in an artifact's folder, if there are any.

    Raises:
        DataError: one is damaged; says what to remove.
    """
    for path in sorted((folder / "checkpoints").glob("*.ckpt")):
        try:
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip() is not None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
            broken = True
        if broken:
            raise DataError(f"{path} is damaged: remove {folder} to begin the fit anew")

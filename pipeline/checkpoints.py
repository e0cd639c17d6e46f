"""Checkpoints of a fit on disk: whole or absent, and one line where one cannot be read."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from common.errors import DataError
from common.files import atomic_write
from pipeline.failures import machine_failure

_PARTS = {"state_dict", "loops", "epoch", "global_step"}
_REMEDY = "remove it, and the stage starts over"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file, syncs and renames it: a killed save leaves the old checkpoint."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save a checkpoint; `storage_options` is unused, it is for remote storage."""
        with atomic_write(path, "wb") as f:
            torch.save(checkpoint, f)

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint.

        Raises:
            DataError: the file is damaged, or no checkpoint of a fit.
        """
        return read_checkpoint(
            Path(path), lambda: super(AtomicCheckpointIO, self).load_checkpoint(path, *args, **kwargs)
        )


def read_checkpoint(path: Path, load: Callable[[], Any]) -> dict[str, Any]:
    """The checkpoint that `load` reads from a file.

    Raises:
        DataError: the file is damaged, or no checkpoint of a fit.
    """
    try:
        checkpoint = load()
    except Exception as error:  # a damaged pickle can raise anything
        if machine_failure(error):
            raise
        raise DataError(f"{path} is damaged: {_REMEDY}") from error
    if not isinstance(checkpoint, dict) or not checkpoint.keys() >= _PARTS:
        raise DataError(f"{path} is no checkpoint of a fit: {_REMEDY}")
    return checkpoint


def check_checkpoints(folder: Path) -> None:
    """Check the checkpoints that a killed fit has left in an artifact's folder: torch compares no checksums.

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


@contextmanager
def for_this_module(last: Path) -> Iterator[None]:
    """A fit that resumes from `last`, if that exists.

    Raises:
        DataError: the checkpoint is of code whose module had other weights.
    """
    resumed = last.exists()
    try:
        yield
    except RuntimeError as error:
        if resumed and str(error).startswith("Error(s) in loading state_dict"):
            raise DataError(f"{last} holds weights of another module, made by other code: {_REMEDY}") from error
        raise

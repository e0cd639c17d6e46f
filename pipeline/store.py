"""The store: a folder for each stage's result, complete once it has a manifest, and not changed after that."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from common.errors import DataError, UserError
from common.files import atomic_write, sync_folder, write_json
from common.plain_text import one_line
from common.terminal import say


@dataclass(frozen=True)
class Artifact:
    """A stage's folder: `config.yaml`, `manifest.json` and what the stage wrote (`data/`, `model/`, `checkpoints/`).

    Where the stage failed, `failed.txt` says why until it runs again.
    """

    folder: Path

    @property
    def complete(self) -> bool:
        """Whether the stage is finished: the manifest is written last."""
        return self._manifest.is_file()

    @property
    def made(self) -> str:
        """A hash of the manifest: it differs each time that the artifact is made."""
        return hashlib.sha256(self._manifest.read_bytes()).hexdigest()[:12]

    def manifest(self) -> dict[str, Any]:
        """Inputs, versions, time and headline metrics of the artifact.

        Raises:
            DataError: the manifest is damaged.
        """
        try:
            manifest = json.loads(self._manifest.read_text(encoding="utf-8"))
        except ValueError:
            manifest = None
        if not isinstance(manifest, dict):
            raise DataError(f"{self._manifest} is damaged: remove {self.folder} to make it again")
        return manifest

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out; prints a line where it has to wait."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder.with_name(f".{self.folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"waiting for another process that makes {self.folder}")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def open(self, settings: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
        """Prepare the folder: remove temporary files of a killed run, keep its finished ones, write `config.yaml`.

        Returns the origin of the run that started the work: where a killed run is resumed, that of the killed run.
        """
        self.folder.mkdir(exist_ok=True)
        for leftover in list(self.folder.rglob(".*.tmp")):  # some are inside others
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        self._failure.unlink(missing_ok=True)
        with atomic_write(self.folder / "config.yaml") as f:
            yaml.safe_dump(dict(settings), f, sort_keys=False, allow_unicode=True)
        path = self.folder / "origin.json"
        if not path.exists():
            write_json(path, origin)
        return json.loads(path.read_text(encoding="utf-8"))

    def set_aside(self) -> None:
        """Move the artifact to `<folder>.old`, replacing an earlier one, so that it is made again.

        One that is not complete is deleted: it is less than what an earlier call put aside.
        """
        old = self.folder.with_name(f"{self.folder.name}.old")
        if self.complete:
            shutil.rmtree(old, ignore_errors=True)
            self.folder.rename(old)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def fail(self, error: Exception) -> None:
        """Note the error that ended the work, in one line, for those who look at the run."""
        if self.folder.exists() and not self.complete:
            said = one_line(str(error))
            line = said if isinstance(error, UserError) else f"{type(error).__name__}: {said}"
            with suppress(OSError), atomic_write(self._failure) as f:  # a full disk may be the error
                f.write(line + "\n")

    def close(self, manifest: Mapping[str, Any]) -> None:
        """Flush what the stage wrote to the disk, then write the manifest: from now on the artifact is complete."""
        sync_folder(self.folder)
        write_json(self._manifest, manifest)
        (self.folder / "origin.json").unlink(missing_ok=True)  # the manifest holds it

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def _failure(self) -> Path:
        return self.folder / "failed.txt"


def finite(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Metrics as floats that JSON can hold; NaN and infinities become null."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}

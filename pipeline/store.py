"""The store: a folder for each stage's result, complete once it has a manifest, and not changed after that.

While a stage works, `origin.json` says what began the work. A folder with neither is a part of a copy, or was given up:
what is in it is not resumed.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from common.contents import check_sizes, damages, listing, remembered
from common.errors import DataError, UserError
from common.files import atomic_write, sync_folder, write_json
from common.manifests import MANIFEST, load_manifest, load_record
from common.plain_text import one_line
from common.terminal import print_error, say


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
    def begun(self) -> bool:
        """Whether a run has begun the work, which another may resume."""
        return self._origin.is_file()

    @property
    def made(self) -> str:
        """A hash of the manifest: it differs each time that the artifact is made."""
        return hashlib.sha256(self._manifest.read_bytes()).hexdigest()[:12]

    def manifest(self) -> dict[str, Any]:
        """Inputs, versions, files, time and headline metrics of the artifact.

        Raises:
            DataError: the manifest is missing or damaged.
        """
        return load_manifest(self.folder, "source", "inputs", "versions", "metrics")

    def origin(self) -> dict[str, Any]:
        """The inputs, code and versions that began the work.

        Raises:
            DataError: the record is missing or damaged.
        """
        return load_record(self._origin, self.folder, "source", "inputs", "versions", "commit")

    def check(self) -> None:
        """Check what takes no time: the manifest or the origin, and the sizes of a finished artifact's files.

        Raises:
            DataError: a file is missing or damaged, or was added; says which, and what to remove.
        """
        if self.complete:
            self.manifest()
            check_sizes(self.folder)
        elif self.begun:
            self.origin()

    def damages(self, *, reread: bool = False) -> list[str]:
        """Damages of the files, a line each.

        Sizes are compared, and contents: of files that have not been read on this machine or, with `reread`, of all.

        Raises:
            DataError: the manifest is missing or damaged.
        """
        hashes = remembered(self.folder.parent)
        found = list(damages(self.folder, self.manifest().get("files"), hashes, reread=reread))
        with suppress(OSError):  # a store that is only read
            hashes.save()
        return found

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

        Where no run has begun the work, whatever is in the folder is removed. Returns the origin of the run that
        started the work: where a killed run is resumed, that of the killed run.

        Raises:
            DataError: the origin is damaged.
        """
        if not self.begun:
            for leftover in self.folder.iterdir() if self.folder.exists() else ():
                _remove(leftover)
            self.note(origin)
        begun = self.origin()
        for leftover in list(self.folder.rglob(".*.tmp")):  # some are inside others
            _remove(leftover)
        self._failure.unlink(missing_ok=True)
        with atomic_write(self.folder / "config.yaml") as f:
            yaml.safe_dump(dict(settings), f, sort_keys=False, allow_unicode=True)
        return begun

    def note(self, origin: Mapping[str, Any]) -> None:
        """Write the origin."""
        write_json(self._origin, origin)

    def give_up(self) -> None:
        """Have the next run start over: what is in the folder must not be resumed."""
        self._origin.unlink(missing_ok=True)

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
        hashes = remembered(self.folder.parent)
        files = listing(self.folder, hashes)
        hashes.save()
        write_json(self._manifest, {**manifest, "files": files})
        self._origin.unlink(missing_ok=True)  # the manifest holds it

    @property
    def _manifest(self) -> Path:
        return self.folder / MANIFEST

    @property
    def _origin(self) -> Path:
        return self.folder / "origin.json"

    @property
    def _failure(self) -> Path:
        return self.folder / "failed.txt"


def verify(artifacts: Iterable[Artifact]) -> None:
    """Read all files of the finished ones among these artifacts, and print how many there are.

    Raises:
        DataError: files are missing, damaged or added; it names the last of them, the others are printed.
    """
    wrong: list[str] = []
    sizes: list[int] = []
    verified = 0
    for artifact in artifacts:
        if not artifact.complete:
            continue
        try:
            wrong += artifact.damages(reread=True)
            files = artifact.manifest().get("files")
        except DataError as error:
            wrong.append(str(error))
            continue
        if files is None:
            say(f"not verified: {artifact.folder}, whose manifest lists no files: an earlier version made it")
        else:
            verified += 1
            sizes += [size for size, _ in files.values()]
    for line in wrong[:-1]:
        print_error(line)
    if wrong:
        raise DataError(wrong[-1])
    say(f"verified: {len(sizes)} files of {verified} artifacts, {sum(sizes):,} bytes")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def finite(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Metrics as floats that JSON can hold; NaN and infinities become null."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}

"""The files of a finished artifact: listed in its manifest with size and hash, compared with the list at each reuse."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from common.errors import DataError
from common.hashes import FileHashes, visible_files
from common.manifests import MANIFEST, load_manifest

Listing = Mapping[str, Sequence[int | str]]

_OWN = (MANIFEST, "origin.json")  # of the store itself; a kill may leave the second
_LOOSE = ("*.lock", "events.out.tfevents.*")  # of those who read an artifact: they come and go


def listing(folder: Path, hashes: FileHashes) -> dict[str, list[int | str]]:
    """Size and sha256 of each file, by its name relative to the folder."""
    return {name: [(folder / name).stat().st_size, hashes.of(folder / name)] for name in sorted(_names(folder))}


def damages(
    folder: Path, listed: Listing | None, hashes: FileHashes | None = None, *, reread: bool = False
) -> Iterator[str]:
    """Damages of an artifact's files, a line each: the file, what is wrong, and what to remove.

    Sizes are compared, and with `hashes` contents too: of files that have not been read on this machine, or, with
    `reread`, of all. An artifact whose manifest lists no files (an earlier version) cannot be checked.
    """
    if listed is None:
        return
    again = f"remove {folder} to make it again, or copy it again"
    present = set(_names(folder))
    for name, (size, sha256) in listed.items():
        path = folder / name
        if name not in present:
            yield f"{path} is missing: {again}"
        elif (found := path.stat().st_size) != size:
            yield f"{path} is damaged ({found:,} bytes, not {size:,}): {again}"
        elif hashes is not None and hashes.of(path, reread=reread) != sha256:
            yield f"{path} is damaged (its content has another hash than in {MANIFEST}): {again}"
    for name in sorted(present - listed.keys()):
        yield f"{folder / name} was added after the stage was finished: move it elsewhere"


def check_sizes(folder: Path) -> None:
    """Check that a finished artifact has the files of its manifest, and no others, by their sizes.

    Raises:
        DataError: it has not, or the manifest is damaged.
    """
    for damage in damages(folder, load_manifest(folder).get("files")):
        raise DataError(damage)


def remembered(store: Path) -> FileHashes:
    """Hashes of artifact files that this machine has read; machines that share a store each read for themselves."""
    return FileHashes(store / f".hashes-{_machine()}.json")


def _names(folder: Path) -> Iterator[str]:
    for path in visible_files(folder):
        name = path.relative_to(folder).as_posix()
        if name not in _OWN and not any(fnmatch(path.name, pattern) for pattern in _LOOSE):
            yield name


@functools.cache
def _machine() -> str:
    """A stable, anonymous name of this machine."""
    number = Path("/etc/machine-id")
    text = platform.node() + (number.read_text() if number.is_file() else "")
    return hashlib.sha256(text.encode()).hexdigest()[:12]

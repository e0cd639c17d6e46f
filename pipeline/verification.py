"""Verification of finished artifacts: all their files are read anew and compared with their manifests."""

from __future__ import annotations

from collections.abc import Iterable

from common.errors import DataError
from common.terminal import print_error, say
from pipeline.store import Artifact


def verify(artifacts: Iterable[Artifact]) -> None:
    """Read all files of the finished ones among these artifacts, and print how many there are.

    Raises:
        DataError: files are missing or damaged, or were added: the last of them, for the others are printed.
    """
    wrong: list[str] = []
    sizes: list[int] = []
    verified = 0
    for artifact in artifacts:
        if not artifact.complete:
            continue
        try:
            wrong += artifact.damages(anew=True)
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

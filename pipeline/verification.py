"""Verification of finished artifacts: all their files are read anew and compared with their manifests."""

from __future__ import annotations

from collections.abc import Iterable

from common.errors import DataError
from pipeline.store import Artifact


def verify(artifacts: Iterable[Artifact]) -> None:
    """Read all files of the finished ones among these artifacts, and print how many there are.

    Raises:
        DataError: files are missing or damaged, or were added; a line each.
    """
    wrong: list[str] = []
    verified: dict[str, int] = {}  # sizes by file
    finished = [artifact for artifact in artifacts if artifact.complete]
    for artifact in finished:
        try:
            wrong += artifact.damages(anew=True)
            files = artifact.manifest().get("files")
        except DataError as error:
            wrong.append(str(error))
            continue
        if files is None:
            print(f"not verified: {artifact.folder}, whose manifest lists no files: an earlier version made it")
        verified |= {f"{artifact.folder}/{name}": size for name, (size, _) in (files or {}).items()}
    if wrong:
        raise DataError("\n".join(wrong))
    print(f"verified: {len(verified)} files of {len(finished)} artifacts, {sum(verified.values()):,} bytes", flush=True)

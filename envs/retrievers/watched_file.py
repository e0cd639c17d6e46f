"""A file that stays open while it is used, and is checked for changes of its bytes."""

from __future__ import annotations

import hashlib
import io
import os
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from common.errors import DataError

_TICK = 0.02  # seconds within which two changes of a file may bear the same time
_BLOCK = 2**17

Stamp = tuple[int, int, int, int]


class WatchedFile:
    """An open file and its stamp: size, times of the last changes of bytes and of the inode, inode.

    All reads are of the file that was opened, also when another one has taken its path. Reading is safe from several
    threads and after a fork.

    Args:
        path: the file.
        what: its name in error messages.

    Raises:
        DataError: the file cannot be opened.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what = path, what
        try:
            self._file = open(path, "rb")  # noqa: SIM115 (closed with the object)
        except OSError as error:
            raise DataError(f"{what} {path}: {error.strerror}") from error
        weakref.finalize(self, self._file.close)
        stat = os.fstat(self._file.fileno())
        if 0 <= time.time() - max(stat.st_mtime, stat.st_ctime) < _TICK:
            time.sleep(_TICK)  # so that a later change has a later time
        self.stamp = self._good = self._now()
        self._bad: Stamp | None = None

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`."""
        return os.pread(self._file.fileno(), end - start, start)

    def lines(self) -> Iterator[bytes]:
        """All lines, with their ends."""
        return iter(io.BufferedReader(_FromStart(self._file.fileno()), _BLOCK))

    def digest(self) -> str:
        """Hash of all bytes."""
        digest = hashlib.blake2b(digest_size=16)
        reader = _FromStart(self._file.fileno())
        while block := reader.read(_BLOCK):
            digest.update(block)
        return digest.hexdigest()

    def check(self, expected: str, digest: Callable[[], str]) -> None:
        """Check that the bytes are those of the hash `expected`, which `digest` computes where the stamp is another.

        So a file that was touched, renamed or deleted stays usable, and one that was overwritten does not.

        Raises:
            DataError: the file has changed.
        """
        now = self._now()
        if now == self._good:
            return
        if now == self._bad or digest() != expected:
            self._bad = now
            raise DataError(
                f"{self.what} {self.path} was changed while it was in use: put it back as it was, or start again"
            )
        self._good = now

    def _now(self) -> Stamp:
        stat = os.fstat(self._file.fileno())
        return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


class _FromStart(io.RawIOBase):
    """Reads a file from its start, whatever else reads it."""

    def __init__(self, handle: int) -> None:
        self._handle, self._at = handle, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] (typeshed: any writable buffer)
        block = os.pread(self._handle, len(buffer), self._at)
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)

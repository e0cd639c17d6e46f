"""Heartbeats of the ranks: a rank that is gone or stopped ends the run within minutes, however long the others wait.

Ranks wait for the slowest without a limit, for sampling may take hours. A thread of each rank increments a counter in
the rendezvous store; a rank whose counter stands still is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

_EVERY, _SILENT = 10.0, 300.0  # seconds; a call into a library can hold Python's lock, and this thread with it, a while
_ENDED = b"ended"


class Heartbeat:
    """Counts for this rank and watches the others, until `end`.

    Args:
        store: one of this thread's own, for a call that waits on a store holds up all others on it.
        rank: of this process.
        ranks: how many there are.
        lost: called with the rank that is silent, or with None where the store is gone.
        every: seconds between two counts.
        silent: seconds after which a rank is lost.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: int,
        lost: Callable[[int | None], None],
        *,
        every: float = _EVERY,
        silent: float = _SILENT,
    ) -> None:
        self._store, self._rank, self._others = store, rank, [other for other in range(ranks) if other != rank]
        self._lost, self._every, self._silent = lost, every, silent
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Say that this rank is done, so that ranks that still work do not count it as lost."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._beat()
            self._store.set(_key(self._rank), _ENDED)
        except RuntimeError:  # of torch, in any call: the process that holds the store is gone
            if not self._ended.is_set():
                self._lost(None)

    def _beat(self) -> None:
        count, woke = 0, time.monotonic()
        heard = dict.fromkeys(self._others, (b"", woke))
        while not self._ended.wait(self._every):
            now = time.monotonic()
            if now - woke > self._silent / 2:  # this process was stopped itself, and maybe all: nobody is to blame
                heard = {other: (said, now) for other, (said, _) in heard.items()}
            woke, count = now, count + 1
            self._store.set(_key(self._rank), str(count))
            for other, (before, since) in heard.items():
                key = _key(other)
                said = self._store.get(key) if self._store.check([key]) else b""
                if said != before:
                    heard[other] = said, now
                elif said != _ENDED and now - since > self._silent:
                    return self._lost(other)


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"

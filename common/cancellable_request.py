"""HTTP request that another thread may cancel: its connection closes, so a server that notices stops working on it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Any


class CancellableRequest:
    """One request on a connection of its own; `trace` is httpx's extension of that name, which gives its socket."""

    def __init__(self) -> None:
        self.given_up = False
        self._socket: socket.socket | None = None
        self._lock = Lock()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Take the socket once it is connected, to a proxy too; encryption replaces it by another."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
            if self.given_up:
                self.give_up()

    def give_up(self) -> None:
        """Cancel: close the connection, now or once there is one; the waiting thread gets an error."""
        self.given_up = True
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):  # it may have ended by itself
                    self._socket.shutdown(socket.SHUT_RDWR)

"""Connections of the retrieval server: deadlines, a limit on their number, a bounded shutdown, and errors as JSON.

Uvicorn has no deadline for the head or the body of a request, none for a client that reads no answer, and no limit on
connections that have sent no request; its own errors are plain text.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

_GRACE = 3.0  # seconds that running requests have when the server stops
_OWN_FILES = 64  # files that the server opens besides connections
_MANY_FILES = 2**13


def server_config(app: FastAPI, *, request_seconds: float = 30) -> uvicorn.Config:
    """How `app` is served.

    A request must arrive whole within `request_seconds` of its first byte, or of the opening of its connection, and a
    client that reads nothing of its answer for as long is disconnected. There are fewer connections than the process
    may open
    files: a further one takes the place of the one that has waited longest for its client, or is answered with 503.
    When the server stops, requests that are not whole are answered with 503, and the others have three seconds.
    """
    files = _files()
    backlog = max(8, min(128, files // 16))  # accepted at once, before any of them can be closed
    most = max(8, files - _OWN_FILES - 4 * backlog)
    return uvicorn.Config(
        app,
        http=functools.partial(Connection, seconds=request_seconds, most=most),  # type: ignore[arg-type] (makes one)
        ws="none",
        lifespan="off",
        log_level="error",
        backlog=backlog,
        timeout_keep_alive=75,  # longer than clients keep idle connections (httpx: 5 s), else one may close in use
        timeout_graceful_shutdown=int(_GRACE) + 5,
    )


def exit_at_once(main: Callable[[], int]) -> NoReturn:
    """Run a server until it ends or is stopped, and leave without waiting for work that nobody waits for."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # while the index loads, and after uvicorn has shut down
    try:
        code = main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _files() -> int:
    """Files that the process may have open: as many as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class Connection(H11Protocol):
    """One connection; it waits for its client, for the application, or for the client to read the answer."""

    def __init__(self, *args: Any, seconds: float, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds, self._most = seconds, most
        self._deadline: asyncio.TimerHandle | None = None  # set while a request arrives
        self._reading: asyncio.TimerHandle | None = None  # set while the client has much of an answer to read

    @property
    def waits_since(self) -> float | None:
        """Time since which it waits for its client's next request or the rest of one; None while it does not."""
        timer = self._deadline or self.timeout_keep_alive_task
        return timer and timer.when() - (self._seconds if timer is self._deadline else self.timeout_keep_alive)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self._seconds, self._late)
        if len(self.connections) > self._most:
            others = (other for other in self.connections if isinstance(other, Connection) and other is not self)
            waiting = [other for other in others if other.waits_since is not None]
            if waiting:
                min(waiting, key=lambda other: other.waits_since or 0).drop()
            else:
                self.refuse(503, f"busy: {self._most} connections are in use")

    def drop(self) -> None:
        """Close at once."""
        self.connections.discard(self)
        self.refuse(503, "busy: this connection waited longest for its client")
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(False)
        self._stop_reading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Set the deadline where a request has begun and is not whole."""
        state = self.conn.their_state
        begun = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
        self._set_deadline(begun and not self.transport.is_closing())

    def _set_deadline(self, on: bool) -> None:
        if on and self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self._late)
        elif not on and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:  # it asked for nothing
            self.transport.close()
        else:
            self.refuse(408, f"the request was not whole after {self._seconds:g} s")

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()  # that of h11, which called
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self.refuse(status, f"not HTTP that can be read: {error or msg}")

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error where there is no answer yet, and close."""
        self._set_deadline(False)
        body = json.dumps({"error": " ".join(message.split())}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        headers += [("retry-after", "1")] if status == 503 else []
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            self.transport.write(self.conn.send(head) or b"")
            self.transport.write(self.conn.send(h11.Data(data=body)) or b"")  # none where the head was asked for
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def shutdown(self) -> None:
        if self._deadline is not None:
            self.refuse(503, "the server stops")
        else:
            super().shutdown()
        self.loop.call_later(_GRACE, self._give_up)

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.refuse(503, "the server stops")
        self.loop.call_later(0.1, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reading()

    def _expect_reading(self, unread: int) -> None:
        """Close the connection of a client that reads nothing for too long."""

        def look() -> None:
            now = self.transport.get_write_buffer_size()
            self._expect_reading(now) if now < unread else self.transport.abort()

        self._reading = self.loop.call_later(self._seconds, look)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

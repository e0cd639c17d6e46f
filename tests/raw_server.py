"""A server that answers each connection by a function, byte by byte if need be, for clients that must not wait."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a running server; `answer` gets a connection whose request was read."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            _read_request(connection)
            answer(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _read_request(connection: socket.socket) -> None:
    read = b""
    while b"\r\n\r\n" not in read:
        part = connection.recv(65536)
        if not part:
            raise OSError("the client has gone")
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            while len(body) < int(line[15:]):
                body += connection.recv(65536)

"""An HTTP server that answers each request by a function, and keeps the requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = Callable[[str, str, str], tuple[int, object]]
"""From method, path and body to status and payload."""


class ScriptedServer(ThreadingHTTPServer):
    """`requests` holds method, path, body and headers of each."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Reply)
        self.answer = answer
        self.requests: list[tuple[str, str, str, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Reply(BaseHTTPRequestHandler):
    server: ScriptedServer

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.requests.append((self.command, self.path, body, dict(self.headers)))
        status, payload = self.server.answer(self.command, self.path, body)
        content = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = _reply

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(answer: Answer) -> Iterator[ScriptedServer]:
    """A server for the block."""
    server = ScriptedServer(answer)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()

"""A local OpenAI-compatible server that answers by a script, for tests of clients, teachers and judges."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

Fault = int | str | bytes | dict | None
Answer = Callable[[str], Any]  # what is said to a user message: a text, or anything that JSON can hold


class ChatServer(ThreadingHTTPServer):
    """Says `answer(user message)`; before that, each call takes a fault from `faults`, while there are any.

    A fault is a status (429, 500, 401), "late" (three seconds), "nonsense" (a body that is no completion), "cut" (a
    reply that is half a JSON object), a body that is sent as it is, or None for no fault. `calls` holds the bodies of
    all requests.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Answer, faults: list[Fault]) -> None:
        super().__init__(("127.0.0.1", 0), _Reply)
        self.answer, self.faults = answer, faults
        self.calls: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.lock = Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Reply(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.calls.append(body)
            self.server.keys.append(self.headers["Authorization"])
            fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            self.send(fault, {"error": {"message": f"fault {fault}"}})
        elif isinstance(fault, bytes | dict):
            self.send(200, fault)
        elif fault == "nonsense":
            self.send(200, b"<html>maintenance</html>")
        else:
            if fault == "late":
                time.sleep(3)
            said = self.server.answer(body["messages"][-1]["content"])
            text = '{"half": ' if fault == "cut" else said if isinstance(said, str) else json.dumps(said)
            self.send(200, completion(text))

    def send(self, status: int, payload: object) -> None:
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if status == 429:
            self.send_header("Retry-After", "0.1")
        self.end_headers()
        with suppress(OSError):  # the client may have gone
            self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        pass


def completion(text: str) -> dict[str, Any]:
    """The body of a chat completion that costs ten tokens."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


@contextmanager
def chat_server(answer: Answer, *faults: Fault) -> Iterator[ChatServer]:
    """A running server."""
    server = ChatServer(answer, list(faults))
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()

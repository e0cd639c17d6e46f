"""A retrieval server that answers by a script, well or in all the ways a server can fail."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from envs.types import Document, Hit


class Reply(BaseHTTPRequestHandler):
    """One request at a `Server`."""

    server: Server

    def do_GET(self) -> None:
        self.server.probes += 1
        self.send(200 if self.server.health else 404, self.server.health)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, request))
        script = self.server.script
        (script.pop(0) if len(script) > 1 else script[0])(self, request)

    def send(self, status: int, payload: object, **headers: str) -> None:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Answers by a script: each POST takes the next entry, the last one stays."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: list[Callable[[Reply, dict], None]], health: dict | None, port: int) -> None:
        super().__init__(("127.0.0.1", port), Reply)
        self.script, self.health, self.probes = script, health, 0
        self.requests: list[tuple[str, dict]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def queries(self) -> list[list[str]]:
        return [request["queries"] for _, request in self.requests]

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


def row(query: str, rank: int) -> dict:
    return {"document": {"id": f"{query}-{rank}", "contents": f'"{query}"\npassage {rank}'}, "score": 1 / (1 + rank)}


def hit(query: str, rank: int) -> Hit:
    return Hit(Document(f"{query}-{rank}", query, f"passage {rank}"), 1 / (1 + rank))


def good(reply: Reply, request: dict) -> None:
    reply.send(200, {"result": [[row(query, rank) for rank in range(request["topk"])] for query in request["queries"]]})


def says(status: int, payload: object, **headers: str) -> Callable[[Reply, dict], None]:
    return lambda reply, _: reply.send(status, payload, **headers)


def hangs_up(reply: Reply, _: dict) -> None:
    reply.close_connection = True
    reply.connection.close()


def breaks_off(reply: Reply, _: dict) -> None:
    reply.send_response(200)
    reply.send_header("Content-Length", "1000")
    reply.end_headers()
    reply.wfile.write(b'{"result": [[')


def too_late(reply: Reply, request: dict) -> None:
    time.sleep(0.4)
    hangs_up(reply, request)


def drips(reply: Reply, _: dict) -> None:
    reply.send_response(200)
    reply.send_header("Content-Length", "100")
    reply.end_headers()
    for _ in range(100):
        try:
            reply.wfile.write(b" ")
        except OSError:  # the client has gone
            break
        time.sleep(0.05)

"""Retrievers of a few passages, served on a free port of this machine by the server that users get, and a client."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from envs.retrievers.connections import server_config
from envs.types import Document, Hit

CORPUS = [
    Document("1", "Aaron", "Aaron was a prophet.\nAnd a brother."),
    Document("2", '"Heroes"', "Heroes is an album."),
    Document("3", "Nile", "The Nile is a river."),
    Document("4", "", "A passage without a title."),
]


class Overlap:
    """Ranks the passages by how many words of the query they hold."""

    identity = "overlap-1"
    documents = CORPUS

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Hit]:
        words = query.lower().split()
        hits = [Hit(d, float(sum(word in f"{d.title} {d.text}".lower() for word in words))) for d in CORPUS]
        return sorted((hit for hit in hits if hit.score), key=lambda hit: -(hit.score or 0))[:k]


class Slow:
    """Holds every search until it is let go."""

    def __init__(self) -> None:
        self.go, self.together, self.most = threading.Event(), 0, 0
        self.searches: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.searches.append(list(queries))
        self.together += 1
        self.most = max(self.most, self.together)
        assert self.go.wait(10)
        self.together -= 1
        return [[] for _ in queries]


class Served(uvicorn.Server):
    """A server that runs in a thread."""

    def __init__(self, app: FastAPI, seconds: float) -> None:
        super().__init__(server_config(app, request_seconds=seconds))
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.url = "http://{}:{}".format(*self.address)
        self.thread = threading.Thread(target=self.run, kwargs={"sockets": [listener]}, daemon=True)
        self.thread.start()


@contextmanager
def serving(seconds: float = 30) -> Iterator[Callable[..., Served]]:
    """Serves apps until the block ends; a request must arrive within `seconds`."""
    running: list[Served] = []

    def start(app: FastAPI, seconds: float = seconds) -> Served:
        running.append(Served(app, seconds))
        return running[-1]

    yield start
    for server in running:
        server.should_exit = True
        server.thread.join(10)
        assert not server.thread.is_alive()


def post(url: str, payload: object) -> tuple[int, dict]:
    """A client that knows nothing but the published request."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

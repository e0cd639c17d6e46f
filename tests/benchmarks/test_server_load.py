"""The load on a server: every request is made once and counted, a failed one ends the measurement; the table."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.report import table
from benchmarks.server_load import ServerProcess, load
from tests.retrieval_server import Server, good, says


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Server, ServerProcess]]]:
    servers: list[Server] = []

    def start(*script: Any) -> tuple[Server, ServerProcess]:
        server = Server(list(script), None, 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here: Any = SimpleNamespace(pid=os.getpid())
        return server, ServerProcess(here, server.server_address[1])

    yield start
    for server in servers:
        server.stop()


def test_clients_share_the_requests_after_one_each_that_is_not_counted(serve) -> None:
    server, process = serve(good)
    measured = load(process, ["a", "b", "c"], clients=2, requests=5)
    assert measured.requests_per_s > 0
    assert measured.cpu_ms >= 0
    asked = Counter(query for [query] in server.queries())
    assert asked == Counter(["a", "b"]) + Counter(["a", "b", "c", "a", "b"])


def test_a_failed_request_is_no_measurement(serve) -> None:
    _, process = serve(good, good, good, says(500, {"error": "broken"}))
    with pytest.raises(RuntimeError, match=r"500.*broken"):
        load(process, ["a"], clients=2, requests=9)
    _, process = serve(says(503, {"error": "full"}))
    with pytest.raises(RuntimeError, match=r"503.*full"):
        load(process, ["a"], clients=2, requests=9)


def test_the_table_has_a_column_for_every_key() -> None:
    rows = [{"what": "Flat", "passages": 10_000, "per_s": 12.3456}, {"what": "server", "ratio": 1234.5}]
    assert table(rows).splitlines() == [
        "| what | passages | per_s | ratio |",
        "| --- | --- | --- | --- |",
        "| Flat | 10,000 | 12.35 |  |",
        "| server |  |  | 1,234 |",
    ]

"""The load on a server: every request is made once and counted, a failed one ends the measurement."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.server_load import load
from tests.retrieval_server import Server, good, says


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*script: Any) -> Server:
        servers.append(Server(list(script), None, 0))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def test_clients_share_the_requests_after_one_each_that_is_not_counted(serve) -> None:
    server = serve(good)
    requests_per_s, cpu_ms = load(os.getpid(), server.server_address[1], ["a", "b", "c"], clients=2, requests=5)
    assert requests_per_s > 0
    assert cpu_ms >= 0
    asked = Counter(query for [query] in server.queries())
    assert asked == Counter(["a", "b"]) + Counter(["a", "b", "c", "a", "b"])


@pytest.mark.parametrize("before", [0, 3])
def test_a_failed_request_is_no_measurement(serve, before: int) -> None:
    server = serve(*before * [good], says(500, {"error": "broken"}))
    with pytest.raises(RuntimeError, match=r"a request failed: 500.*broken"):
        load(os.getpid(), server.server_address[1], ["a"], clients=2, requests=9)

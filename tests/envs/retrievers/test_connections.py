"""Clients that dawdle, hang up, send nonsense or come in masses, and a server that stops."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import pytest

from envs.retrievers import connections
from envs.retrievers.server import create_app
from envs.types import Document, Hit
from tests.served import Overlap, Served, Slow, post, serving, wait_until

HEAD = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n"
Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with serving(seconds=0.2) as start:
        yield start


def connect(server: Served) -> socket.socket:
    return socket.create_connection(server.address, timeout=10)


def read(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    try:
        return b"".join(iter(lambda: connection.recv(2**16), b""))
    except ConnectionResetError:
        return b"reset"


def answer(connection: socket.socket) -> tuple[int, dict]:
    head, _, body = read(connection).partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    assert (b"retry-after: 1" in head.lower()) == (b" 503 " in head)
    assert b"\n" not in body
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("part", [b"POST /retr", HEAD, HEAD + b'{"queries": ['], ids=["head", "no body", "body"])
def test_a_request_that_is_not_whole_in_time_is_408(serve: Serve, part: bytes, capfd) -> None:
    with connect(serve(create_app(Overlap()))) as connection:
        connection.sendall(part)
        assert answer(connection) == (408, {"error": "the request was not whole after 0.2 s"})
    assert capfd.readouterr() == ("", "")


def test_bytes_that_drip_do_not_move_the_deadline(serve: Serve) -> None:
    server, start = serve(create_app(Overlap())), time.monotonic()
    with connect(server) as connection, pytest.raises(OSError, match=r"."):  # noqa: PT012
        while time.monotonic() < start + 5:
            connection.sendall(b"X")
            time.sleep(0.02)
    assert time.monotonic() < start + 3


def test_a_connection_that_sends_nothing_is_closed(serve: Serve) -> None:
    with connect(serve(create_app(Overlap()))) as connection:
        assert read(connection) == b""


def test_a_connection_may_rest_between_requests_but_not_within_one(serve: Serve) -> None:
    client = http.client.HTTPConnection(*serve(create_app(Overlap())).address, timeout=10)
    client.connect()
    first = client.sock
    for _ in range(2):
        client.request("GET", "/health")
        assert json.load(client.getresponse())["status"] == "ok"
        time.sleep(0.4)
    assert client.sock is first
    with first:
        first.sendall(b"GET /health HTTP/1.1\r\n")
        assert answer(first)[0] == 408


def test_half_a_request_that_came_with_a_whole_one_has_a_deadline_too(serve: Serve) -> None:
    with connect(serve(create_app(Overlap()))) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HT")
        said = read(connection)
    assert [part.split(b" ")[0] for part in said.split(b"HTTP/1.1 ")[1:]] == [b"200", b"408"]


def test_an_error_has_no_body_just_where_the_head_was_asked_for(serve: Serve) -> None:
    server = serve(create_app(Overlap()))
    with connect(server) as connection:
        connection.sendall(b"HEAD /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        head, _, body = read(connection).partition(b"\r\n\r\n")
    assert (head.split()[1], body) == (b"400", b"")
    with connect(server) as connection:
        connection.sendall(b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 405")
        connection.sendall(b"GET /health HT")
        assert answer(connection)[0] == 408


def test_a_search_may_take_longer_than_its_request(serve: Serve) -> None:
    slow = Slow()
    server = serve(create_app(slow))
    threading.Timer(0.5, slow.go.set).start()
    assert post(server.url, {"queries": ["a"]}) == (200, {"result": [[]]})


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 70_000, 431),
        (HEAD.replace(b"20", b"-1"), 400),
        (HEAD.replace(b"Content-Length: 20", b"Transfer-Encoding: chunked") + b"zz\r\n", 400),
    ],
)
def test_what_is_not_http_is_a_json_error(serve: Serve, request_: bytes, status: int, capfd) -> None:
    with connect(serve(create_app(Overlap()), seconds=5)) as connection:
        connection.sendall(request_)
        code, error = answer(connection)
    assert code == status
    assert error["error"].startswith("not HTTP that can be read: ")
    assert capfd.readouterr() == ("", "")


def test_a_client_that_leaves_within_its_body_leaves_no_trace(serve: Serve, capfd) -> None:
    server = serve(create_app(Overlap()), seconds=5)
    for part in (HEAD, HEAD + b'{"que', b"POST"):
        with connect(server) as connection:
            connection.sendall(part)
    wait_until(lambda: server.started and not server.server_state.tasks and not server.server_state.connections)
    assert post(server.url, {"queries": ["river"]})[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_client_that_reads_nothing_is_left(serve: Serve) -> None:
    class Long(Overlap):
        def search(self, queries, k):
            return [[Hit(Document(str(n), "x", "x" * 100_000), 1.0) for n in range(k)] for _ in queries]

    server = serve(create_app(Long()))
    body = b'{"queries": ["a"], "topk": 100}'
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(HEAD.replace(b"20", str(len(body)).encode()) + body)
        wait_until(lambda: server.server_state.total_requests)
        wait_until(lambda: not server.server_state.connections)
    client = http.client.HTTPConnection(*server.address, timeout=10)
    client.connect()
    first = client.sock
    client.request("POST", "/retrieve", body)
    assert len(json.load(client.getresponse())["result"][0]) == 100
    time.sleep(0.5)  # one that has read it may rest
    client.request("GET", "/health")
    assert json.load(client.getresponse())["status"] == "ok"
    assert client.sock is first


def test_a_client_that_reads_slowly_is_not_left() -> None:
    unread, timers, left = [100], [], []
    transport = SimpleNamespace(get_write_buffer_size=lambda: unread[0], abort=lambda: left.append(unread[0]))
    loop = SimpleNamespace(call_later=lambda _, look: timers.append(look))
    connection = SimpleNamespace(_seconds=30, transport=transport, loop=loop)
    connection._expect_reading = partial(connections.Connection._expect_reading, connection)
    connection._expect_reading(unread[0])
    for unread[0] in (99, 98, 98):
        timers.pop()()
    assert left == [98]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many connections as a process may have that opens 112 files."""
    monkeypatch.setattr(connections, "_files", lambda: 112)
    return 112 - 64 - 4 * 8


def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest(serve: Serve, few: int) -> None:
    server = serve(create_app(Overlap()), seconds=30)
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(few)]
        for connection in idle:
            connection.sendall(b"GET /")
        wait_until(lambda: len(server.server_state.connections) == few)
        assert post(server.url, {"queries": ["river"]})[0] == 200
        gone = [connection for connection in idle if _ended(connection)]
        assert gone == idle[:1]


def test_a_connection_that_rests_waits_too(serve: Serve, few: int) -> None:
    server = serve(create_app(Overlap()), seconds=30)
    rests = http.client.HTTPConnection(*server.address, timeout=10)
    rests.request("GET", "/health")
    rests.getresponse().read()
    with ExitStack() as stack:
        halves = [stack.enter_context(connect(server)) for _ in range(few - 1)]
        for connection in halves:
            connection.sendall(b"GET /")
        wait_until(lambda: len(server.server_state.connections) == few)
        assert post(server.url, {"queries": ["river"]})[0] == 200
        assert [connection for connection in (rests.sock, *halves) if _ended(connection)] == [rests.sock]


def test_connections_that_come_at_once_take_a_place_each(serve: Serve, few: int) -> None:
    server = serve(create_app(Overlap()), seconds=30)
    resting = [http.client.HTTPConnection(*server.address, timeout=10) for _ in range(few)]
    for client in resting:
        client.request("GET", "/health")
        client.getresponse().read()
    held = threading.Event()
    next(iter(server.server_state.connections)).loop.call_soon_threadsafe(held.wait)
    with ExitStack() as stack:
        new = [stack.enter_context(connect(server)) for _ in range(3)]
        for connection in new:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        held.set()
        assert [connection.recv(12) for connection in new] == [b"HTTP/1.1 200"] * 3
        assert [client for client in resting if _ended(client.sock)] == resting[:3]


@pytest.mark.parametrize(
    ("soft", "hard", "files"),
    [(256, 1024, 1024), (1024, 1024, 1024), (1024, 10**6, 8192), (1024, -1, 8192), (-1, -1, 8192), (20_000, -1, 8192)],
)
def test_the_process_allows_itself_the_files_that_it_may(
    soft: int, hard: int, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: raised.append(limits))
    assert connections._files() == files
    assert raised == ([(files, hard)] if 0 < soft < files else [])


def _ended(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        return bool(read(connection)) or True
    except TimeoutError:
        return False


def test_where_all_connections_are_in_work_another_is_503(serve: Serve, few: int) -> None:
    slow = Slow()
    server = serve(create_app(slow), seconds=30)
    working = [threading.Thread(target=post, args=(server.url, {"queries": ["a"]})) for _ in range(few)]
    for client in working:
        client.start()
    wait_until(lambda: len(server.server_state.tasks) == few)
    with connect(server) as connection:
        assert answer(connection) == (503, {"error": f"busy: {few} connections are in use"})
    slow.go.set()
    for client in working:
        client.join(10)
    assert post(server.url, {"queries": ["a"]})[0] == 200


@pytest.mark.parametrize("part", [b"POST", HEAD + b"{"])
def test_a_server_that_stops_does_not_wait_for_half_a_request(serve: Serve, part: bytes, capfd) -> None:
    server = serve(create_app(Overlap()), seconds=60)
    with connect(server) as connection:
        connection.sendall(part)
        wait_until(lambda: server.started and server.server_state.connections)
        time.sleep(0.05)
        start, server.should_exit = time.monotonic(), True
        assert answer(connection) == (503, {"error": "the server stops"})
        assert time.monotonic() < start + 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ends", [True, False])
def test_a_server_that_stops_gives_a_running_search_a_while(serve: Serve, ends: bool, monkeypatch, capfd) -> None:
    monkeypatch.setattr(connections, "_GRACE", 0.6)
    slow = Slow()
    server = serve(create_app(slow))
    answers: list[tuple[int, dict]] = []
    client = threading.Thread(target=lambda: answers.append(post(server.url, {"queries": ["a"]})))
    client.start()
    wait_until(lambda: slow.searches)
    server.should_exit = True
    if ends:
        threading.Timer(0.2, slow.go.set).start()
    client.join(3)
    slow.go.set()
    assert answers == [(200, {"result": [[]]}) if ends else (503, {"error": "the server stops"})]
    assert capfd.readouterr() == ("", "")

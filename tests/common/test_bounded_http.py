"""Calls that end in time and within their size, whatever the server does."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import cycle

import httpx
import pytest

import common.bounded_http as bounded_http
from common.bounded_http import BoundedHTTP, HTTPFailure, may_pass, retry_after
from tests.raw_server import HEAD, raw_server

CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def drip(parts: bytes, *, start: bytes = b"", pause: float = 0.02) -> Callable[[socket.socket], None]:
    """Sends bytes one after the other for ever, each before a timeout of a single read would end."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        for byte in cycle(parts):
            connection.sendall(bytes([byte]))
            time.sleep(pause)

    return answer


def flood(part: bytes, *, start: bytes = b"") -> Callable[[socket.socket], None]:
    """Sends the same as fast as it can, for ever."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(part)

    return answer


def silent(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


@pytest.mark.parametrize(
    "answer",
    [
        silent,
        drip(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000),
        drip(b"X: y\r\n", start=HEAD),
        drip(b" ", start=HEAD + b"Content-Length: 100000\r\n\r\n"),
        drip(b" ", start=HEAD + b"\r\n"),
        drip(b"1\r\n \r\n", start=CHUNKED),
        drip(b"x", start=CHUNKED + b"1;"),
        drip(b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.005),
        flood(b"HTTP/1.1 102 Processing\r\n\r\n" * 100),
    ],
    ids=["silent", "status", "head", "body", "body without length", "chunks", "extension", "slow 1xx", "1xx"],
)
def test_a_call_ends_in_time_as_a_whole(answer: Callable[[socket.socket], None]) -> None:
    with raw_server(answer) as url:
        client = BoundedHTTP(url, what="server")
        start = time.monotonic()
        with pytest.raises(HTTPFailure, match=r"^no complete answer in 0\.4 s$") as caught:
            client.send("POST", "/x", {}, timeout=0.4)
        assert 0.4 <= time.monotonic() - start < 1.5
    assert (caught.value.kind, caught.value.lasts) == ("timeout", False)


def test_a_name_that_cannot_be_looked_up_is_a_failure() -> None:
    with pytest.raises(HTTPFailure, match="label"):
        BoundedHTTP(f"http://{'a' * 99}.example", what="server", proxies=False).send("GET", "/", timeout=5)


@pytest.mark.parametrize(("timeout", "seconds"), [(60.0, 10.0), (5.0, 5.0)])
def test_a_connection_has_ten_seconds_of_the_time(
    timeout: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_connects(_: httpx.Client, request: httpx.Request, **__: object) -> None:
        assert request.extensions["timeout"] == dict.fromkeys(("read", "write", "pool"), timeout) | {"connect": seconds}
        raise httpx.ConnectTimeout("")

    monkeypatch.setattr(httpx.Client, "send", never_connects)
    with pytest.raises(HTTPFailure, match=rf"^no connection in {seconds:g} s$") as caught:
        BoundedHTTP("http://search.example", what="server").send("GET", "/", timeout=timeout)
    assert caught.value.kind == "timeout"


def test_an_abandoned_call_ends_its_connection() -> None:
    gone = threading.Event()

    def answer(connection: socket.socket) -> None:
        try:
            drip(b" ", start=HEAD + b"\r\n")(connection)  # no single read would ever end it
        finally:
            gone.set()

    with raw_server(answer) as url:
        with pytest.raises(HTTPFailure, match="no complete answer"):
            BoundedHTTP(url, what="server").send("GET", "/", timeout=0.1)
        assert gone.wait(5.0)


def test_a_name_that_is_looked_up_for_ever_is_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: never.wait(20))
    start = time.monotonic()
    with pytest.raises(HTTPFailure, match=r"in 0\.2 s"):
        BoundedHTTP("http://search.example:1", what="server").send("GET", "/", timeout=0.2)
    assert time.monotonic() - start < 2
    never.set()


@pytest.mark.parametrize(
    "answer",
    [
        flood(b" " * 65536, start=HEAD + b"\r\n"),
        flood(b"4000\r\n" + b" " * 0x4000 + b"\r\n", start=CHUNKED),
        flood(b" " * 65536, start=HEAD + b"Content-Length: 1500000000\r\n\r\n"),
    ],
    ids=["endless", "endless chunks", "1.5 GB"],
)
def test_an_answer_is_bounded_in_size(answer: Callable[[socket.socket], None]) -> None:
    with raw_server(answer) as url:
        client = BoundedHTTP(url, what="server", most_bytes=2**20)
        with pytest.raises(HTTPFailure, match=r"^an answer of more than 1 MiB$") as caught:
            client.send("GET", "/", timeout=20)
    assert caught.value.lasts, "another try would be as long"


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "gzip"), (zlib.compress, "deflate")])
def test_an_answer_is_bounded_in_size_as_it_is_unpacked(pack: Callable[[bytes], bytes], name: str) -> None:
    sent = packed(pack(b" " * 32 * 2**20), name)
    with raw_server(lambda connection: connection.sendall(sent)) as url:
        client = BoundedHTTP(url, what="server", most_bytes=2**20)
        tracemalloc.start()
        try:
            with pytest.raises(HTTPFailure, match=r"^an answer of more than 1 MiB$"):
                client.send("GET", "/", timeout=20)
            assert tracemalloc.get_traced_memory()[1] < 8 * 2**20, "no more of it was unpacked than counts"
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(("size", "fits"), [(2**20, True), (2**20 + 1, False)], ids=["all", "more"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_the_bound_is_the_last_size_that_fits(size: int, fits: bool, pack: Callable[[bytes], bytes]) -> None:
    sent = packed(pack(b"x" * size), "identity" if pack is bytes else "gzip")
    with raw_server(lambda connection: connection.sendall(sent)) as url:
        client = BoundedHTTP(url, what="server", most_bytes=2**20)
        if fits:
            assert client.send("GET", "/", timeout=20).content == b"x" * size
        else:
            with pytest.raises(HTTPFailure, match="more than 1 MiB"):
                client.send("GET", "/", timeout=20)


def packed(body: bytes, encoding: str) -> bytes:
    return HEAD + f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (packed(b"x", "br"), "packed as 'br', which was not asked for"),
        (packed(b"x", "zstd"), "packed as 'zstd'"),
        (packed(gzip.compress(gzip.compress(b"x")), "gzip, gzip"), "packed as 'gzip, gzip'"),
        (packed(b"no gzip at all", "gzip"), "incorrect header check"),
        (packed(gzip.compress(b"x" * 999)[:-9], "gzip"), "a packed answer breaks off"),
        (packed(gzip.compress(b"x") + gzip.compress(b"y"), "gzip"), "or continues after its end"),
        (HEAD + b"X: " + b"x" * 200_000, "."),
        (b"\x00\xff nonsense\r\n\r\n", "."),
        (b"", "."),
    ],
    ids=["br", "zstd", "twice", "no gzip", "half", "two", "long head", "nonsense", "nothing"],
)
def test_an_answer_that_cannot_be_read_is_a_failure_with_a_reason(sent: bytes, complaint: str) -> None:
    with raw_server(lambda connection: connection.sendall(sent)) as url, pytest.raises(HTTPFailure, match=complaint):
        BoundedHTTP(url, what="server").send("GET", "/", timeout=5)


def test_a_key_in_an_answer_that_cannot_be_read_is_masked() -> None:
    sent = HEAD + b"your key is sk-0123456789abcdef\r\n\r\n"
    with raw_server(lambda connection: connection.sendall(sent)) as url:
        client = BoundedHTTP(url, what="server", key="sk-0123456789abcdef")
        with pytest.raises(HTTPFailure, match=r"your key is \*\*\*"):
            client.send("GET", "/", timeout=5)


def test_a_packed_answer_is_read_and_so_is_an_empty_one() -> None:
    with raw_server(lambda connection: connection.sendall(packed(gzip.compress(b'{"a": 1}'), "gzip"))) as url:
        assert BoundedHTTP(url, what="server").send("GET", "/", timeout=5).json() == {"a": 1}
    with raw_server(lambda connection: connection.sendall(packed(b"", "gzip"))) as url:
        assert BoundedHTTP(url, what="server").send("GET", "/", timeout=5).content == b""


def test_a_charset_that_is_no_text_is_not_used() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=zlib\r\nContent-Length: 4\r\n\r\n"
    with raw_server(lambda connection: connection.sendall(head + b"text")) as url:
        client = BoundedHTTP(url, what="server")
        assert client.summary(client.send("GET", "/", timeout=5)) == "200 OK: text"


def test_half_a_character_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    monkeypatch.setattr(httpx.Client, "send", lambda _, request, **__: seen.append(request.content) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        BoundedHTTP("http://127.0.0.1:9", what="server").send("POST", "/", {"text": "\ud83d"}, timeout=5)
    assert json.loads(seen[0] or b"") == {"text": "\ud83d"}


def test_a_redirect_is_an_answer() -> None:
    asked: list[int] = []

    def away(connection: socket.socket) -> None:
        asked.append(1)
        connection.sendall(b"HTTP/1.1 307 X\r\nLocation: http://me:hidden@other/\r\nContent-Length: 0\r\n\r\n")

    with raw_server(away) as url:
        client = BoundedHTTP(url, what="server")
        said = client.summary(client.send("POST", "/", {}, timeout=5))
    assert said == "307 X to http://***@other/: redirects are not followed, give the final address"
    assert len(asked) == 1


def answers(*statuses: int, headers: dict[str, str] | None = None) -> Callable[[], httpx.Response]:
    script = iter(statuses)
    return lambda: httpx.Response(next(script), headers=headers)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited between tries, which take none here."""
    noted: list[float] = []
    monkeypatch.setattr(bounded_http, "sleep", noted.append)
    return noted


CLIENT = BoundedHTTP("http://127.0.0.1:9", what="server")


def test_tries_end_with_the_first_answer_that_lasts(waits: list[float]) -> None:
    assert CLIENT.settled(answers(500, 429, 200, 200), 3, lambda tries: tries * 2.0).status_code == 200
    assert waits == [2.0, 4.0]
    assert CLIENT.settled(answers(400, 200), 3, float).status_code == 400


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_there_are_as_many_retries_as_asked_for_and_no_wait_after_the_last(waits: list[float], retries: int) -> None:
    with pytest.raises(HTTPFailure, match=rf"^gave up after try {retries + 1}: 503 Service Unavailable$") as caught:
        CLIENT.settled(answers(*[500] * retries, 503), retries, float)
    assert caught.value.kind == "status 503"
    assert waits == [1.0, 2.0, 3.0][:retries]


@pytest.mark.parametrize(
    ("asked", "waited"), [("3", 3.0), ("0", 1.0), ("0.5", 1.0), ("60", 60.0), ("61", 60.0), ("9" * 400, 60.0)]
)
def test_retry_after_is_waited_for_up_to_a_minute(waits: list[float], asked: str, waited: float) -> None:
    CLIENT.settled(answers(429, 200, headers={"Retry-After": asked}), 1, float)
    assert waits == [waited]


def test_retry_after_may_be_a_date() -> None:
    def asked(text: str) -> float:
        return retry_after(httpx.Response(429, headers={"Retry-After": text}))

    now = datetime.now(UTC)
    assert 28 < asked(format_datetime(now + timedelta(seconds=30), usegmt=True)) <= 30
    assert asked(format_datetime(now - timedelta(days=1), usegmt=True)) == 0
    assert [asked(text) for text in ("", "soon", "-5", "nan", "inf", "1e9", "Thu, 99 Foo")] == [0.0] * 7


def test_what_would_be_as_wrong_again_is_not_tried_again(waits: list[float]) -> None:
    def too_long() -> httpx.Response:
        raise HTTPFailure("answer too long", "too long", lasts=True)

    with pytest.raises(HTTPFailure, match=r"^too long$"):
        CLIENT.settled(too_long, 3, float)
    assert waits == []


def test_which_answers_may_pass() -> None:
    assert [status for status in range(200, 600) if may_pass(status)] == [408, 409, 429, 500, *range(502, 600)]

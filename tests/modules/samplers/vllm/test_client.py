"""vLLM's client against servers that never end, lead elsewhere, or say what cannot be read."""

from __future__ import annotations

import socket
import time

import pytest

from common.errors import ConfigError, EngineError
from modules.samplers.vllm.client import NoAnswer, VLLMClient
from tests.raw_server import HEAD, raw_server


def drips(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


def floods(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b" " * 2**20)


def test_an_answer_that_drips_is_no_answer_in_time() -> None:
    with raw_server(drips) as url:
        start = time.monotonic()
        with pytest.raises(NoAnswer, match=r"^/version: no complete answer in 0\.\d+ s$"):
            VLLMClient(url, timeout=0.4).version()
        assert time.monotonic() - start < 1.5


def test_an_answer_without_end_ends_the_run() -> None:
    with raw_server(floods) as url, pytest.raises(EngineError, match=r"/version: an answer of more than 64 MiB$"):
        VLLMClient(url, timeout=30.0).version()


def test_a_redirect_is_not_followed() -> None:
    sent = b"HTTP/1.1 307 X\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"
    complaint = "answered 307 X to http://elsewhere/: redirects are not followed"
    with raw_server(lambda one: one.sendall(sent)) as url, pytest.raises(EngineError, match=complaint):
        VLLMClient(url, timeout=5.0).name_weights("w")


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000, b"[]", b"\xff\xfe\xfa"])
def test_what_is_no_object_is_no_answer(body: bytes) -> None:
    head = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode()
    complaint = "/version answered 200 with"
    with raw_server(lambda one: one.sendall(head + body)) as url, pytest.raises(NoAnswer, match=complaint):
        VLLMClient(url, timeout=5.0).version()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="vLLM: give an address"):
        VLLMClient("127.0.0.1:8000", timeout=5.0)

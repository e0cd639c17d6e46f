"""What a server's answer is read as: the text, the cost, and what is said of answers that are neither."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from common.bounded_http import HTTPFailure
from common.chat_client import ChatCall, ChatClient, ChatError
from common.chat_endpoint import ChatEndpoint, Completion
from common.errors import ConfigError
from tests.chat_server import Fault, chat_server, completion
from tests.raw_server import HEAD, raw_server

KEY = "sk-proj-0123456789abcdefghij"
CALL = ChatCall("Say it back.", "a" * 28)  # ten tokens, as estimated


def endpoint(url: str, **settings: Any) -> ChatEndpoint:
    own = {"api_key_env": "OPENAI_API_KEY", "timeout": 5.0, "retries": 0, "settings": {"max_tokens": 100}}
    return ChatEndpoint("m", url, **own | settings)


def answered(body: Fault) -> Completion:
    with chat_server(lambda _: "", body) as server:
        return endpoint(server.url).complete(CALL)


def message(**fields: Any) -> dict[str, Any]:
    return {**completion(""), "choices": [{"index": 0, "message": {"role": "assistant", **fields}}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("said", "said"),
        (None, ""),
        ([], ""),
        (
            [{"type": "text", "text": "sa"}, {"type": "thinking"}, {"type": "text", "text": "id"}],
            "said",
        ),
        ("half \ud83d", "half \\ud83d"),
        ("nul \0", "nul \0"),
    ],
)
def test_content_is_a_text_or_parts_of_it(content: Any, text: str) -> None:
    assert answered(message(content=content)) == Completion(text, 10, 3)


def test_half_a_character_of_a_question_does_not_end_the_work() -> None:
    with chat_server(lambda user: user) as server:
        assert (
            endpoint(server.url).complete(ChatCall("s", "half \ud83d, whole \ud83d\ude00")).text == "half �, whole 😀"
        )


def test_reasoning_beside_the_content_is_not_the_reply() -> None:
    assert answered(message(content=None, reasoning_content='{"score": 10}')) == Completion("", 10, 3)
    assert answered(message(reasoning='{"score": 10}', content="said")).text == "said"


def test_a_reply_that_was_cut_is_known() -> None:
    body = completion("half")
    body["choices"][0]["finish_reason"] = "length"
    assert answered(body) == Completion("half", 10, 3, cut=True)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>maintenance</html>",
        b"",
        b"\xff\xfe\xfa",
        b"[" * 100_000,
        b'{"choices": [' * 20_000,
        b'{"choices": [{"message": {"content": ' + b"9" * 5000 + b"}}]}",
        {},
        {"choices": None},
        {"choices": []},
        {"choices": {"0": {"message": {"content": "x"}}}},
        {"choices": "text"},
        {"choices": [None]},
        {"choices": [{"text": "x"}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": ["x"]}]},
        message(content=5),
        message(content={"score": 80}),
        message(content=[{"type": "text"}]),
        message(content=[{"type": "text", "text": 5}]),
        message(content=["x"]),
        message(content=[None]),
    ],
    ids=lambda body: str(body)[:40],
)
def test_what_is_no_completion_is_a_failure_with_a_reason(tmp_path: Path, body: Fault) -> None:
    with chat_server(lambda _: "", body) as server:
        one = ChatClient("m", server.url, cache=str(tmp_path), retries=0)
        with pytest.raises(ChatError, match="answered 200 with something that is not a chat completion") as caught:
            one.ask([CALL], dict)
        assert one.counts == {"failed: no completion": 1}
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"total_tokens": 25}, 25),
        ({"total_tokens": 1}, 1),
        ({"total_tokens": 4 * (40 + 4) + 8 * 100 + 10_000}, 10_976),
        ({"total_tokens": 10_977}, 12),
        ({"total_tokens": 0}, 12),
        ({"total_tokens": -1000}, 12),
        ({"total_tokens": 10**30}, 12),
        ({"total_tokens": "25"}, 12),
        ({"total_tokens": 25.0}, 12),
        ({"total_tokens": True}, 12),
        ({"total_tokens": None}, 12),
        ({"total_tokens": [25]}, 12),
        ({}, 12),
        ([], 12),
        ("25", 12),
        (None, 12),
    ],
)
def test_a_cost_that_cannot_be_is_estimated(usage: Any, cost: int) -> None:
    found = answered({**completion("said"), "usage": usage})
    assert (found.tokens, found.estimated) == (cost, cost == 12)


@pytest.mark.parametrize(
    ("own", "cost"), [(9, 9), (0, 0), (25, 25), (26, 2), (-1, 2), (True, 2), ("9", 2), (9.0, 2), (None, 2)]
)
def test_the_part_of_the_reply_is_estimated_where_it_cannot_be(own: Any, cost: int) -> None:
    usage = {"total_tokens": 25, "completion_tokens": own}
    assert answered({**completion("said"), "usage": usage}).completion_tokens == cost


@pytest.mark.parametrize("usage", [{"total_tokens": -1000}, {"total_tokens": 10**30}, None])
def test_an_absurd_cost_switches_no_cap_off_and_none_on(tmp_path: Path, usage: Any) -> None:
    body = {**completion('{"a": 1}'), "usage": usage}
    with chat_server(lambda _: "", *[body] * 9) as server:
        one = ChatClient("m", server.url, cache=str(tmp_path), max_tokens=30, concurrency=1)
        with pytest.raises(ChatError, match="max_tokens 30 reached: 3 replies of 39 tokens"):
            one.ask([ChatCall(CALL.system, CALL.user[1:] + str(number)) for number in range(9)], dict)
        assert len(server.calls) == 3
        assert one.counts == {"paid": 3, "costs estimated": 3}


def test_a_reply_ends_in_time_and_size(tmp_path: Path) -> None:
    def drips(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.02)

    with raw_server(drips) as url, pytest.raises(HTTPFailure, match=r"no complete answer in 0\.3 s") as caught:
        endpoint(url, timeout=0.3).complete(CALL)
    assert caught.value.kind == "timeout"
    whole = HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b" " * 9 * 2**20)
    with raw_server(lambda one: one.sendall(whole)) as url, pytest.raises(HTTPFailure, match="more than 8 MiB"):
        endpoint(url, retries=3).complete(CALL)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_ends_the_work(tmp_path: Path, status: int) -> None:
    with chat_server(lambda _: "", *[status] * 9) as server:
        with pytest.raises(ChatError, match=rf"rejects the call: {status} .*redirects are not followed.*base_url"):
            ChatClient("m", server.url, cache=str(tmp_path), concurrency=1).ask([CALL, ChatCall("a", "b")], dict)
        assert len(server.calls) == 1


def test_a_key_is_in_no_message_no_log_and_no_cached_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    faults: list[Fault] = [
        json.dumps({"error": {"message": f"headers: Authorization: Bearer {KEY}"}}).encode(),
        completion(f"no JSON but {KEY[:20]}"),
        completion(f'{{"said": "{KEY}"}}'),
    ]
    with chat_server(lambda _: "", *faults) as server, caplog.at_level(logging.DEBUG):
        one = ChatClient("m", server.url, cache=str(tmp_path), retries=0, concurrency=1, max_failures=2)
        with pytest.raises(ChatError, match="2 calls failed in a row") as caught:
            one.ask([ChatCall("a", "1"), ChatCall("a", "2")], dict)
        assert one.ask([ChatCall("a", "3")], dict) == [{"said": "***"}], "masked before it is cached or used"
        assert server.keys == [f"Bearer {KEY}"] * 3
    for path in tmp_path.iterdir():
        assert KEY[:20].encode() not in path.read_bytes()
    for text in (str(caught.value), caplog.text):
        assert KEY[:12] not in text
        assert "***" in text


@pytest.mark.parametrize("status", [400, 401, 403, 404, 500])
def test_an_error_that_repeats_the_key_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def send(self: Any, _: int, payload: object) -> None:
        original(self, status, {"error": {"message": f"bad key: Bearer {KEY}"}})

    with chat_server(lambda _: "x") as server:
        original = server.RequestHandlerClass.send  # type: ignore[attr-defined]
        monkeypatch.setattr(server.RequestHandlerClass, "send", send)
        with pytest.raises(ChatError, match=r"bad key: Bearer \*\*\*") as caught:
            ChatClient("m", server.url, cache=str(tmp_path), retries=0, max_failures=1).ask([CALL], dict)
    assert "0123" not in str(caught.value)


def test_a_password_in_the_address_is_sent_in_place_of_the_key_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with chat_server(lambda _: "", 401) as server, caplog.at_level(logging.DEBUG):
        one = ChatClient("m", server.url.replace("//", "//me:p%40rolewort@"), cache=str(tmp_path))
        with pytest.raises(ChatError, match=r"^m at http://\*\*\*@127.0.0.1:\d+/v1 rejects the call: 401") as caught:
            one.ask([CALL], dict)
        assert server.keys == ["Basic bWU6cEByb2xld29ydA=="]
    assert "rolewort" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("key", ["sk-1\n23", "schlüssel-123", "sk\x00"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr("common.chat_endpoint.os.environ", {"MY_KEY": key})
    with pytest.raises(ChatError, match=r"the environment variable MY_KEY holds characters that no API key has$"):
        endpoint("http://127.0.0.1:9/v1", api_key_env="MY_KEY")


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="chat server: give an address"):
        endpoint("127.0.0.1:8000/v1")

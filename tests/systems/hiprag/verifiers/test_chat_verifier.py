"""The model's opinion of single steps, against a local server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from common.chat_client import ChatClient
from systems.hiprag.verifiers.chat_verifier import PROMPTS, ChatVerifier
from tests.chat_server import ChatServer, chat_server
from tests.systems.hiprag.verifiers.test_verifiers import needless, stated

CHECKS = [needless("who?", "Ada", "It was Ada."), stated("I know it.", "Lovelace"), needless("who?", "Bob", "Ada")]


def honest(user: str) -> dict[str, Any]:
    shown = json.loads(user)
    return {"verdict": shown["conclusion"] in shown.get("answer", "Lovelace")}


@pytest.fixture
def verifier(tmp_path) -> Callable[..., ChatVerifier]:
    def made(server: ChatServer, **settings: Any) -> ChatVerifier:
        settings = {"retries": 0, "timeout": 5.0} | settings
        return ChatVerifier(ChatClient("m", server.url, cache=str(tmp_path / "cache"), **settings))

    return made


def test_each_check_is_one_call_of_its_kind_about_one_step(verifier) -> None:
    with chat_server(honest) as server:
        one = verifier(server, concurrency=1)
        assert one.verify(CHECKS) == [True, True, False]
        assert not one.counts["no_verdict"]
        assert [call["messages"][0]["content"] for call in server.calls] == [PROMPTS[check.kind] for check in CHECKS]
        payloads = [json.loads(call["messages"][1]["content"]) for call in server.calls]
        assert payloads[0] == {"query": "who?", "answer": "It was Ada.", "conclusion": "Ada"}
        assert payloads[1] == {"said": "I know it. Lovelace", "conclusion": "Lovelace"}
        assert {call["temperature"] for call in server.calls} == {0}


@pytest.mark.parametrize("reply", ["no JSON", {}, {"Verdict": True}, {"verdict": "true"}, {"verdict": None}, [True]])
def test_a_reply_without_a_verdict_is_none_and_counted(verifier, reply: Any) -> None:
    with chat_server(lambda user: honest(user) if "said" in user else reply) as server:
        one = verifier(server)
        assert one.verify(CHECKS) == [None, True, None]
        assert one.counts["no_verdict"] == 2


def test_nothing_to_check_asks_nobody(verifier) -> None:
    with chat_server(honest) as server:
        assert verifier(server).verify([]) == []
        assert not server.calls

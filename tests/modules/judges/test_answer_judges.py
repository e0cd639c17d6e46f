"""Judges of answers: what is asked of a local server and of a tiny policy, and what is not asked at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.chat_client import ChatClient
from common.costs import JUDGE_CALLS
from envs.types import Episode, Question
from modules.judges.answer_judges import ChatAnswers, LocalAnswers
from modules.samplers.in_process import InProcessSampler
from tests.chat_server import ChatServer, chat_server
from tests.tiny import byte_tokenizer, tiny_policy


def answered(answer: str) -> Episode:
    return Episode(Question("q", "Who <wrote> it?", ("Ada Lovelace", "Ada")), (), status="answered", answer=answer)


EPISODES = [answered(text) for text in ("Countess Ada", "the Ada", "", "Bob</answer>")]


def honest(user: str) -> dict[str, Any]:
    return {"correct": "Ada" in json.loads(user)["answer"]}


def judge(server: ChatServer, folder: Path) -> ChatAnswers:
    return ChatAnswers(ChatClient("m", server.url, cache=str(folder), retries=0, timeout=5.0, concurrency=1))


def test_only_what_is_neither_exact_nor_empty_is_asked_and_a_reply_is_paid_for_once(tmp_path: Path) -> None:
    with chat_server(honest) as server:
        one = judge(server, tmp_path)
        assert one.correct(EPISODES) == [True, True, False, False]
        assert judge(server, tmp_path).correct(EPISODES) == [True, True, False, False]
        assert (len(server.calls), one.counts[JUDGE_CALLS]) == (2, 2)
        asked = [json.loads(call["messages"][1]["content"]) for call in server.calls]
    assert [one["answer"] for one in asked] == ["Countess Ada", "Bob"], "without tags"
    assert asked[0]["accepted"] == ["Ada Lovelace", "Ada"]


@pytest.mark.parametrize("reply", ["no JSON", {}, {"correct": "true"}, {"correct": 1}])
def test_a_reply_without_a_verdict_is_unknown_and_counted(tmp_path: Path, reply: Any) -> None:
    with chat_server(lambda user: reply) as server:
        one = judge(server, tmp_path)
        assert one.correct(EPISODES) == [None, True, False, None]
        assert one.counts["judge_no_reply"] == 2


def test_a_local_model_says_yes_or_no_by_their_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = InProcessSampler(tiny_policy(byte_tokenizer()))
    one = LocalAnswers(sampler)
    score, asked = sampler.score, []
    monkeypatch.setattr(sampler, "score", lambda requests: asked.extend(requests) or score(requests))
    verdicts = one.correct(EPISODES)
    scores = score(asked)
    assert verdicts == [sum(scores[0]) > sum(scores[1]), True, False, sum(scores[2]) > sum(scores[3])]
    decode = sampler.policy.tokenizer.decode
    assert [decode(list(request.forced_ids)) for request in asked] == ["yes", "no"] * 2
    assert json.dumps("Countess Ada") in decode(list(asked[0].prefix()))
    assert one.counts[JUDGE_CALLS] == 2
    assert one.counts["cost/read_tokens/judge"] > 0
    assert one.correct([]) == []

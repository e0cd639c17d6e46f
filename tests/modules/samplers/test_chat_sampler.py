"""A chat model as any agent, against a local server: what it is shown, how its reply becomes a turn, what fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.chat_client import ChatClient, ChatError
from common.costs import costs_in
from common.errors import ConfigError
from envs.requests import Request, forced_request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.sampling import ByAgent
from envs.types import Document, Episode, Limits, Question
from modules.samplers.chat_sampler import INSTRUCTION, NO_REPLY, ChatSampler, ended
from systems.sirag.parse import TAGS
from systems.sirag.protocol import DECISION_MAKER, GENERATOR, KNOWLEDGE_SELECTOR, SIRAG
from tests.chat_server import ChatServer, chat_server
from tests.tiny import FixedRetriever, byte_tokenizer

PROTOCOL = SIRAG(byte_tokenizer(TAGS))  # type: ignore[arg-type] (a loaded one will do)
QUESTIONS = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",)) for n in range(3)]
LIMITS = Limits(turns=11, turn_tokens=100)


def plays(user: str) -> dict[str, str]:
    """What a model that reads its context says as each of the three agents."""
    context = json.loads(user)["context"]
    asked = context.rpartition("Question: ")[2].partition("<|im_end|>")[0]
    if "Searches: 0 of 4" in context:
        return {"text": f"<decision>retrieve</decision><query>{asked}</query> and so on"}
    if "Searches: 1 of 4" in context:
        return {"text": "<decision>stop</decision>"}
    return {"text": "<keep>2</keep>" if "Which of these" in context else "Ada" if "All of it." in context else "?"}


@pytest.fixture
def sampler(tmp_path: Path) -> Callable[..., ChatSampler]:
    def made(server: ChatServer, **settings: Any) -> ChatSampler:
        settings = {"retries": 0, "timeout": 5.0} | settings
        return ChatSampler(ChatClient("m", server.url, cache=str(tmp_path / "cache"), **settings), PROTOCOL)

    return made


def played(one: ChatSampler, questions: Sequence[Question] = QUESTIONS, limits: Limits = LIMITS) -> list[Episode]:
    pages = [Document("a", "A", "Nothing."), Document("b", "B", "All of it.")]
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever(pages), limits=limits)
    agents = dict.fromkeys((DECISION_MAKER, KNOWLEDGE_SELECTOR, GENERATOR), one)
    return rollout(environment, ByAgent(agents), questions, seed=0)


def test_it_refuses_to_score_given_tokens_in_one_line(sampler) -> None:
    line = (
        r"^ChatSampler gives no log-probs of tokens that it did not sample: score with InProcessSampler or VLLMSampler$"
    )
    with chat_server(plays) as server, pytest.raises(ConfigError, match=line):
        sampler(server).score([forced_request((1,), (2,), agent="scorer")])


def test_it_plays_every_agent_from_what_that_agent_sees(sampler) -> None:
    with chat_server(plays) as server:
        one = sampler(server)
        episodes = played(one)
        assert {call["messages"][0]["content"] for call in server.calls} == {INSTRUCTION}
        assert len(server.calls) == 3 * 4
    for episode in episodes:
        assert [turn.text for turn in episode.turns] == [
            f"<decision>retrieve</decision><query>{episode.question.text}</query>",
            "<keep>2</keep>",
            "<decision>stop</decision><|im_end|>",
            "Ada<|im_end|>",
        ]
        assert [turn.finish for turn in episode.turns] == ["stop", "stop", "eos", "eos"]
        assert (episode.status, episode.answer, PROTOCOL.valid(episode)) == ("answered", "Ada", True)
        tag = PROTOCOL.codec.tokenizer.get_vocab()["<keep>"]
        assert episode.turns[1].action_ids[0] == tag, "its tags are the tags' tokens, as a policy writes them"
    assert not costs_in(one.counts), "its tokens are no policy's"


def test_what_was_paid_for_once_is_not_asked_again(sampler) -> None:
    with chat_server(plays) as server:
        first, second = played(sampler(server)), played(sampler(server))
        assert len(server.calls) == 12
        assert [e.turns for e in first] == [e.turns for e in second]


def test_a_turn_without_a_reply_ends_its_episode_with_an_error_and_no_other(sampler) -> None:
    def silent(user: str) -> Any:
        return "no JSON" if "book 1" in user and "Searches: 1" in user else plays(user)

    with chat_server(silent) as server:
        one = sampler(server)
        episodes = played(one)
    assert [episode.status for episode in episodes] == ["answered", "error", "answered"]
    assert (episodes[1].error, episodes[1].answer) == (NO_REPLY, "")
    assert [turn.agent for turn in episodes[1].turns] == [DECISION_MAKER, KNOWLEDGE_SELECTOR]
    assert one.counts["chat_no_reply"] == 1


@pytest.mark.parametrize("reply", [{}, {"Text": "x"}, {"text": 1}, ["x"], "x"])
def test_a_reply_that_is_not_the_json_asked_for_is_no_turn(sampler, reply: Any) -> None:
    with chat_server(lambda _: reply) as server:
        [episode] = played(sampler(server), QUESTIONS[:1])
    assert episode.status == "error"
    assert not episode.turns


def test_an_outage_ends_the_work_in_one_line(sampler) -> None:
    with chat_server(plays, *[500] * 3) as server, pytest.raises(ChatError, match="no call was answered"):
        played(sampler(server))


def test_a_long_reply_is_cut_to_the_limit_of_a_turn(sampler) -> None:
    with chat_server(lambda _: {"text": "<decision>retrieve</decision> Well" + " well" * 50}) as server:
        [episode] = played(sampler(server), QUESTIONS[:1], Limits(turn_tokens=20))
    assert (len(episode.turns[0].action_ids), episode.turns[0].finish) == (20, "length")
    assert episode.turns[0].action.kind == "invalid"


@pytest.mark.parametrize("given", [{"forced_ids": (1,)}, {"first_ids": (1,)}])
def test_a_forced_turn_cannot_be_scored(sampler, given: dict[str, Any]) -> None:
    with chat_server(plays) as server, pytest.raises(ConfigError, match="forced turns of agent 'decision_maker'"):
        sampler(server).submit([Request(Episode(QUESTIONS[0], ()), (), (), agent=DECISION_MAKER, **given)])


def test_where_a_reply_ends() -> None:
    assert ended("a</q> b</k>", ("</k>", "</q>"), "<e>") == ("a</q>", "stop")
    assert ended("a", ("</q>",), "<e>") == ("a<e>", "eos")
    assert ended("a", (), "<e>") == ("a<e>", "eos")

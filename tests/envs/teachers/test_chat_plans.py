"""The model teacher against a local server that is right, wrong, or not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.chat_client import ChatClient, ChatError
from datamodules.corpus_data import CorpusData
from datamodules.episode_sampling import EpisodeSampling
from datamodules.records import episode_from_row, numbered_rows
from datamodules.sources.twowiki import TwoWiki
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.retrievers.gold_among import GoldAmong
from envs.teachers.chat_plans import ChatPlans
from envs.teachers.plans import Plan, PlanTeacher
from envs.types import Gold, GoldStep, Limits, Question
from tests.chat_server import ChatServer, chat_server
from tests.tiny import byte_tokenizer

FIXTURES = Path(__file__).parents[2] / "fixtures"
PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type] (a loaded one will do)
STEPS = (GoldStep("The Reed >> director", "Ansel Birk", ("d1",)), GoldStep("#1 >> place of birth", "Velmark", ("d2",)))
QUESTION = Question("q", "Where was the director of The Reed born?", ("Velmark",), Gold(steps=STEPS))


def good(user: str) -> dict[str, Any]:
    """A teacher that does what it is told: it cleans shorthand, and thinks once the sub-questions are clean."""
    asked = json.loads(user)
    if any(">>" in hop["question"] for hop in asked["hops"]):
        clean = [f"Tell me about hop {n}, please?" for n in range(len(asked["hops"]))]
        pairs = zip(clean, asked["hops"], strict=True)
        return {"hops": [{"question": question, "answer": hop["answer"]} for question, hop in pairs]}
    return {"thoughts": [f"I think {n}." for n in range(2 * len(asked["hops"]) + 1)]}


def changed(clean: dict[str, Any] | None = None, think: dict[str, Any] | None = None) -> Callable[[str], Any]:
    """The good teacher, but for one of its replies."""

    def answer(user: str) -> dict[str, Any]:
        reply = good(user)
        return (clean if "hops" in reply else think) or reply

    return answer


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def plans(server: ChatServer, cache: str, *questions: Question, **settings: Any) -> list[Plan | str]:
    client = ChatClient("m", server.url, cache=cache, **{"retries": 1, "timeout": 5.0} | settings)
    return ChatPlans(client).plan(questions or [QUESTION])


def test_two_calls_make_a_plan(cache: str) -> None:
    with chat_server(good) as server:
        [plan] = plans(server, cache)
        assert len(server.calls) == 2
    assert isinstance(plan, Plan)
    assert [(hop.search_thought, hop.query, hop.read_thought, hop.answer) for hop in plan.hops] == [
        ("I think 0.", "Tell me about hop 0, please?", "I think 1.", "Ansel Birk"),
        ("I think 2.", "Tell me about hop 1, please?", "I think 3.", "Velmark"),
    ]
    assert (plan.thought, plan.answer) == ("I think 4.", "Velmark")
    assert [hop.documents for hop in plan.hops] == [("d1",), ("d2",)]


def test_the_model_sees_the_gold_passages_where_there_is_a_corpus(cache: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "d1", "title": "The Reed", "text": "A film by Ansel Birk."}\n')
    with chat_server(good) as server:
        ChatPlans(ChatClient("m", server.url, cache=cache), corpus=corpus).plan([QUESTION])
        clean, think = (json.loads(call["messages"][1]["content"]) for call in server.calls)
    assert clean["hops"][0]["passage"] == think["hops"][0]["passage"] == "The Reed: A film by Ansel Birk."
    assert "passage" not in clean["hops"][1]
    assert (clean["question"], clean["answer"]) == (QUESTION.text, "Velmark")


THOUGHTS = [f"I think {n}." for n in range(5)]
HOPS = [{"question": "Who made it?", "answer": "Ansel Birk"}, {"question": "Born where?", "answer": "Velmark"}]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (changed(think={"thoughts": THOUGHTS[:4]}), "think: not two thoughts a hop and one"),
        (changed(think={"thoughts": [*THOUGHTS, "more"]}), "think: not two thoughts a hop and one"),
        (changed(think={"thoughts": [*THOUGHTS[:4], " "]}), "think: not two thoughts a hop and one"),
        (changed(think={"thoughts": "none"}), "think: no usable reply"),
        (changed(clean={"hops": HOPS[:1]}), "clean: another number of hops"),
        (
            changed(clean={"hops": [HOPS[0] | {"question": ""}, HOPS[1]]}),
            "clean: a sub-question or its answer is empty",
        ),
        (changed(clean={"hops": [HOPS[0], HOPS[1] | {"answer": "Paris"}]}), "clean: another sub-answer"),
        (
            changed(clean={"hops": [HOPS[0] | {"question": "Is it by Ansel Birk?"}, HOPS[1]]}),
            "clean: a sub-question gives its answer away",
        ),
        (changed(clean={"chain": []}), "clean: no usable reply"),
        (lambda user: "I cannot help with that.", "clean: no usable reply"),
    ],
)
def test_what_is_not_as_asked_for_is_no_plan_but_a_reason(cache: str, answer: Any, reason: str) -> None:
    with chat_server(answer) as server:
        assert plans(server, cache) == [reason]


def test_one_bad_item_does_not_spoil_the_others(cache: str) -> None:
    others = [Question(f"q{n}", f"Question {n}?", ("Velmark",), QUESTION.gold) for n in range(3)]
    bare = Question("bare", "Why?", ("x",))

    def answer(user: str) -> dict[str, Any]:
        return {"thoughts": []} if "Question 1?" in user and ">>" not in user else good(user)

    with chat_server(answer) as server:
        found = plans(server, cache, others[0], bare, others[1], others[2])
    assert [plan if isinstance(plan, str) else "plan" for plan in found] == [
        "plan",
        "no gold reasoning",
        "think: not two thoughts a hop and one",
        "plan",
    ]


def stage(server: ChatServer, folder: Path, **settings: Any) -> tuple[EpisodeSampling, Path]:
    source = TwoWiki(FIXTURES / "2wikimultihopqa.json")
    CorpusData(source).make(folder / "corpus", seed=0, rank=0, world_size=1)
    corpus = folder / "corpus" / "data" / "corpus.jsonl"
    client = ChatClient("m", server.url, cache=str(folder / "cache"), retries=0, concurrency=1, **settings)
    teacher = PlanTeacher(PROTOCOL, ChatPlans(client, corpus=corpus))
    retriever = GoldAmong(BM25(corpus), teacher, corpus)
    limits = Limits(total_tokens=100_000)
    environment = RetrievalEnvironment(PROTOCOL, retriever, limits=limits)
    return EpisodeSampling(source, environment, teacher, unit=1), folder / "sft"


def made(maker: EpisodeSampling, folder: Path) -> dict[str, float]:
    maker.make(folder, seed=0, rank=0, world_size=1)
    return maker.merge(folder, seed=0, world_size=1)


@pytest.fixture
def sound() -> Iterator[ChatServer]:
    with chat_server(good) as server:
        yield server


def test_a_stage_of_model_taught_episodes_is_valid_and_right(sound: ChatServer, tmp_path: Path) -> None:
    maker, folder = stage(sound, tmp_path)
    headline = made(maker, folder)
    rows = numbered_rows(folder / "data" / "episodes.jsonl")
    episodes = [episode_from_row(row, where) for where, row in rows]
    assert (headline["em"], headline["valid_episodes"], headline["skipped"]) == (1.0, 1.0, 0.0)
    assert all(PROTOCOL.valid(episode) for episode in episodes)
    assert len(sound.calls) == 2 * len(episodes)


def test_a_stage_that_was_capped_goes_on_to_the_same_bytes(sound: ChatServer, tmp_path: Path) -> None:
    made(*stage(sound, tmp_path / "whole"))
    paid = len(sound.calls)
    capped, folder = stage(sound, tmp_path / "cut", max_calls=3)
    with pytest.raises(ChatError, match=r"max_calls 3 reached"):
        made(capped, folder)
    assert not (folder / "data" / "episodes.jsonl").exists()
    made(*stage(sound, tmp_path / "cut"))
    assert len(sound.calls) == 2 * paid  # nothing was paid for twice
    one, other = (tmp_path / name / "sft" / "data" / "episodes.jsonl" for name in ("whole", "cut"))
    assert one.read_bytes() == other.read_bytes()

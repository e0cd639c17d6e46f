"""No turn waits for another episode's search, where turns are made elsewhere; in this process all is as it was."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, current_thread
from typing import Any

import pytest

from common.errors import RetrievalError
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.sampling import ByAgent
from envs.types import Document, Episode, Hit
from tests.tiny import FixedRetriever, Scripted, question
from tests.toy_protocols import OneMove

PROTOCOL = OneMove()


class Elsewhere(Scripted):
    """Searches twice for question q0 and answers all others at once; its turns are done whenever they are polled."""

    def __init__(self) -> None:
        super().__init__(PROTOCOL.codec.control, self.say)
        self.asked: list[str] = []
        self.goes_on = Event()  # question q2 was asked

    def say(self, episode: Episode) -> str:
        searches = episode.question.id == "q0" and len(episode.turns) < 2
        return "I ask.<find>x</find>" if searches else "So.<say>Ada</say>"

    def submit(self, requests: Sequence[Request]) -> None:
        super().submit(requests)
        self.asked += [request.episode.question.id for request in requests]
        if "q2" in self.asked:
            self.goes_on.set()

    @property
    def waits(self) -> bool:
        return bool(self._requests)


class Here(Elsewhere):
    """The same in this process."""

    waits = False  # pyright: ignore


class Slow(FixedRetriever):
    """Answers once question q2 was asked; keeps the number of queries of each call, and its thread."""

    def __init__(self, goes_on: Event) -> None:
        super().__init__([Document("d", "T", "Ada")])
        self.goes_on, self.calls, self.threads = goes_on, list[int](), set[str]()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.calls.append(len(queries))
        self.threads.add(current_thread().name)
        assert self.goes_on.wait(10), "nothing else is sampled while this search lasts"
        return super().search(queries, k)


@pytest.mark.parametrize("behind", [lambda sampler: sampler, lambda sampler: ByAgent({"policy": sampler})])
def test_a_search_of_one_episode_stalls_no_other(behind: Any) -> None:
    """Two places: while the first question's search lasts, the second ends, and the third takes its place."""
    sampler = Elsewhere()
    retriever = Slow(sampler.goes_on)
    questions = [question(identity=f"q{n}") for n in range(3)]
    episodes = rollout(RetrievalEnvironment(PROTOCOL, retriever), behind(sampler), questions, seed=0, pool=2)
    assert [episode.answer for episode in episodes] == ["Ada"] * 3
    assert sampler.asked == ["q0", "q1", "q2", "q0", "q0"]
    assert retriever.calls == [1, 1]
    assert current_thread().name not in retriever.threads
    assert [len(turn.hits) for turn in episodes[0].turns] == [1, 1, 0]
    assert all(turn.observation_ids for turn in episodes[0].turns[:2])


def test_a_sampler_of_this_process_searches_in_its_own_thread_and_in_one_call() -> None:
    sampler = Here()
    sampler.goes_on.set()
    retriever = Slow(sampler.goes_on)
    rollout(RetrievalEnvironment(PROTOCOL, retriever), sampler, [question(identity="q0")] * 3, seed=0)
    assert (retriever.calls, retriever.threads) == ([3, 3], {current_thread().name})


def test_a_retriever_that_stays_down_ends_the_work_with_its_line() -> None:
    class Down(FixedRetriever):
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            raise RetrievalError("server down")

    environment = RetrievalEnvironment(PROTOCOL, Down([]), max_failures=2)
    questions = [question(identity="q0")] * 4
    with pytest.raises(RetrievalError, match=r"server down \(2 failed calls in a row: stopping\)"):
        rollout(environment, Elsewhere(), questions, seed=0, pool=1)


def test_a_sampler_that_gives_nothing_is_an_error_and_not_waited_for() -> None:
    class Lost(Elsewhere):
        def poll(self) -> list[Any]:
            self._requests.clear()
            return []

    with pytest.raises(RuntimeError, match="Lost has open requests and collects no turn"):
        rollout(RetrievalEnvironment(PROTOCOL), Lost(), [question(identity="q0")], seed=0)

from __future__ import annotations

from collections.abc import Sequence

import pytest

from envs.protocols.direct import Direct
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import play_out, rollout
from envs.types import Document, Episode, Hit, Limits, Turn
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question

PROTOCOL = ProRAG(byte_tokenizer())
DIRECT = Direct(byte_tokenizer(), retrieve=True)
QUERY, SUBANSWER, FINAL = (f"t</step>\n<{tag}>\nx</{tag}>" for tag in ("subquery", "subanswer", "answer"))


class Watched(Scripted):
    """Notes which questions share each call; question qN answers after N turns."""

    def __init__(self) -> None:
        super().__init__(PROTOCOL.codec.control, self.say)
        self.calls: list[list[str]] = []

    def say(self, episode: Episode) -> str:
        return FINAL if len(episode.turns) >= int(episode.question.id[1:]) else SUBANSWER

    def collect(self) -> list[tuple[Request, Turn]]:
        pairs = super().collect()
        self.calls.append([request.episode.question.id for request, _ in pairs])
        return pairs


def test_every_episode_is_finished_and_in_the_order_of_the_questions() -> None:
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([Document("d", "T", "x")]))
    sampler = Watched()
    questions = [question(identity=f"q{n}") for n in (3, 0, 2, 1, 0)]
    episodes = rollout(environment, sampler, questions, seed=0, samples=2, pool=3)
    assert [(e.question.id, e.sample) for e in episodes] == [(q.id, s) for q in questions for s in (0, 1)]
    assert all(e.status == "answered" for e in episodes)
    assert [len(e.turns) for e in episodes] == [4, 4, 1, 1, 3, 3, 2, 2, 1, 1]
    assert len(sampler.finished) == 8  # two of the questions share a name


def test_a_place_in_the_pool_is_filled_again_in_order() -> None:
    sampler = Watched()
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([]))
    rollout(environment, sampler, [question(identity=f"q{n}") for n in (2, 0, 1, 0)], seed=0, pool=2)
    assert sampler.calls == [["q2", "q0"], ["q2", "q1"], ["q2", "q1"], ["q0"]]


class Asked(FixedRetriever):
    """Notes how many queries share each call."""

    def __init__(self) -> None:
        super().__init__([Document("d", "T", "x")])
        self.calls: list[int] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.calls.append(len(queries))
        return super().search(queries, k)


class OneByOne(Scripted):
    """Finishes one request at a time, the first first; notes how many are open."""

    def __init__(self) -> None:
        super().__init__(DIRECT.codec.control, lambda _: "Ada<|im_end|>")
        self.open: list[int] = []

    def collect(self) -> list[tuple[Request, Turn]]:
        self.open.append(len(self._requests))
        request = self._requests.pop(0)
        return [(request, self.take(request))]


@pytest.mark.parametrize(
    ("pool", "searched", "open_"),
    [
        (1, [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
        (2, [2, 1, 1, 1], [2, 2, 2, 2, 1]),
        (3, [3, 1, 1], [3, 3, 3, 2, 1]),
        (5, [5], [5, 4, 3, 2, 1]),
        (9, [5], [5, 4, 3, 2, 1]),
    ],
)
def test_an_act_takes_a_place_in_the_pool_as_a_request_does(pool: int, searched: list[int], open_: list[int]) -> None:
    """Standard RAG: every episode begins with a search of the protocol's own."""
    retriever, sampler = Asked(), OneByOne()
    questions = [question(identity=f"q{n}") for n in range(5)]
    episodes = rollout(RetrievalEnvironment(DIRECT, retriever), sampler, questions, seed=0, pool=pool)
    assert [episode.answer for episode in episodes] == ["Ada"] * 5
    assert (retriever.calls, sampler.open) == (searched, open_)


def test_progress_counts_every_episode_once() -> None:
    """Also those that end before they begin, for want of room."""
    for limits, count in ((Limits(), 3), (Limits(total_tokens=1), 3)):
        environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([]), limits=limits)
        ticks: list[int] = []
        begun = [environment.start(question(identity=f"q{n}")) for n in range(3)]
        play_out(environment, Watched(), begun, seed=0, pool=2, tick=ticks.append)
        assert sum(ticks) == count
        assert all(episode.status is not None for episode in begun)


def test_no_questions_give_no_episodes() -> None:
    assert rollout(RetrievalEnvironment(PROTOCOL), Watched(), [], seed=0) == []

from __future__ import annotations

from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Turn
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question

PROTOCOL = ProRAG(byte_tokenizer())
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


def test_no_questions_give_no_episodes() -> None:
    assert rollout(RetrievalEnvironment(PROTOCOL), Watched(), [], seed=0) == []

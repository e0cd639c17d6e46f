"""Adaptive-RAG: an episode is that of its route, to the byte, and what the router reads is counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from common.costs import read_by
from common.errors import ConfigError
from datamodules.records import episode_to_row
from envs.interfaces import AgentFormat, Sampler
from envs.protocols.direct import Direct
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Limits, Question
from evaluation.evaluate import Benchmark, Evaluation
from modules.samplers.in_process import InProcessSampler
from systems.adaptive_rag.protocol import AdaptiveRAG
from systems.adaptive_rag.router import LETTERS, LetterRouter
from systems.baselines.ircot import IRCoT
from tests.tiny import FixedRetriever, byte_tokenizer, tiny_policy

TOKENIZER: Any = byte_tokenizer()
POLICY = tiny_policy(TOKENIZER, scale=3.0)
QUESTIONS = [Question(f"q{n}", f"Who wrote {'it ' * n}?", ("Ada",)) for n in range(4)]
ROUTES: dict[str, AgentFormat] = {
    "A": Direct(TOKENIZER, retrieve=False),
    "B": Direct(TOKENIZER, retrieve=True),
    "C": IRCoT(TOKENIZER, iterations=2),
}


class Says:
    """A router that always chooses one letter, or one by the length of the question."""

    def __init__(self, letter: str = "") -> None:
        self.always, self.asked = letter, Counter[str]()

    def letter(self, question: str) -> str:
        self.asked[question] += 1
        return self.always or LETTERS[len(question) % 3]


def environment(protocol: AgentFormat) -> RetrievalEnvironment:
    pages = [Document(f"d{n}", "Title", f"page {n}") for n in range(3)]
    return RetrievalEnvironment(protocol, FixedRetriever(pages), limits=Limits(turn_tokens=20, total_tokens=2048))


def played(protocol: AgentFormat, questions: list[Question]) -> list[Episode]:
    return rollout(environment(protocol), InProcessSampler(POLICY, temperature=1.0), questions, seed=3, samples=2)


def bytes_of(protocol: AgentFormat) -> list[str]:
    return [json.dumps(episode_to_row(episode)) for episode in played(protocol, QUESTIONS)]


@pytest.mark.parametrize("letter", LETTERS)
def test_a_router_that_always_says_one_letter_gives_the_episodes_of_that_route(letter: str) -> None:
    router = Says(letter)
    assert bytes_of(AdaptiveRAG(ROUTES, router)) == bytes_of(ROUTES[letter])
    assert router.asked == {question.text: 1 for question in QUESTIONS}


def test_routes_side_by_side_change_nothing_in_each_other() -> None:
    mixed = played(AdaptiveRAG(ROUTES, Says()), QUESTIONS)
    for number, question in enumerate(QUESTIONS):
        alone = played(ROUTES[LETTERS[len(question.text) % 3]], [question])
        for one, other in zip(mixed[2 * number : 2 * number + 2], alone, strict=True):
            assert [turn.ids() for turn in one.turns] == [turn.ids() for turn in other.turns]
            assert (one.answer, one.steps) == (other.answer, other.steps)


class Weighs(Sampler):
    """Log-probs of the letters by the question that the context shows."""

    def __init__(self, logps: dict[str, tuple[float, float, float]]) -> None:
        super().__init__()
        self.logps = logps

    def score(self, requests: Any) -> list[tuple[float, ...]]:
        text = TOKENIZER.decode(list(requests[0].prefix()))
        [own] = [logps for question, logps in self.logps.items() if f"Question: {question}<|im_end|>" in text]
        assert [TOKENIZER.decode(list(one.forced_ids or ())) for one in requests] == ["A", "B", "C"]
        return [(logp,) for logp in own]


def test_the_likeliest_letter_is_the_route_the_simplest_of_equals() -> None:
    told = {"x?": (-3.0, -0.1, -2.0), "y?": (-3.0, -2.0, -1.5), "z?": (-1.0, -1.0, -1.0)}
    router = LetterRouter(Weighs(told), Direct(TOKENIZER, retrieve=False))
    assert [router.letter(question) for question in told] == ["B", "C", "A"]
    with pytest.raises(ConfigError, match="Direct does not answer at once"):
        LetterRouter(Weighs(told), Direct(TOKENIZER, retrieve=True)).letter("x?")


def test_ranks_and_kills_change_nothing_and_results_have_routes_and_read_tokens(tmp_path: Path) -> None:
    def evaluation() -> Evaluation:
        router = LetterRouter(InProcessSampler(tiny_policy(TOKENIZER, seed=5)), Direct(TOKENIZER, retrieve=False))
        protocol = AdaptiveRAG(ROUTES, router)
        benchmark = Benchmark(QUESTIONS, "test")  # type: ignore[arg-type] (a list is enough)
        return Evaluation({"toy": benchmark}, environment(protocol), InProcessSampler(POLICY), unit=1)

    maker = evaluation()
    maker.make(tmp_path / "a", seed=0, rank=0, world_size=1)
    headline = maker.merge(tmp_path / "a", seed=0, world_size=1)
    prompts = [Direct(TOKENIZER, retrieve=False).prompt(question) for question in QUESTIONS]
    assert headline[read_by("router")] == sum(map(len, prompts)), "three letters after one prompt are one row"
    notes = json.loads((tmp_path / "a" / "data" / "results.json").read_text())["notes"]
    shares = notes["toy/test"]["choices"]["all"]
    assert sum(share for name, share in shares.items() if name.startswith("route/")) == pytest.approx(1)
    for rank in (1, 0):
        evaluation().make(tmp_path / "b", seed=0, rank=rank, world_size=2)
    assert evaluation().merge(tmp_path / "b", seed=0, world_size=2) == headline
    first, other = ((tmp_path / name / "data" / "predictions-toy-test.jsonl").read_bytes() for name in "ab")
    assert first == other


def test_routes_must_be_whole_and_of_one_tokenizer() -> None:
    with pytest.raises(ConfigError, match="routes are A, B; give one for each of A, B, C"):
        AdaptiveRAG({letter: ROUTES[letter] for letter in "AB"}, Says("A"))
    other: Any = byte_tokenizer(("<other>",))
    with pytest.raises(ConfigError, match="different tokenizers"):
        AdaptiveRAG(ROUTES | {"C": IRCoT(other)}, Says("A"))

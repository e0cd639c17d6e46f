"""Gains of a teacher's searches on the embedded world: those that find what is missing are worth something."""

from __future__ import annotations

from pathlib import Path

import pytest

import train
from datamodules.sources.world_questions import WorldQuestions
from datamodules.world_data import WorldData
from envs.interfaces import RewardContext
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.types import Episode, Limits
from envs.world.teacher import Teacher
from modules.policy import load_policy
from modules.rewards.answer_gain import answer_gain
from modules.rewards.search_gain import search_gain
from modules.samplers.in_process import InProcessSampler

pytestmark = pytest.mark.slow
LIMITS = Limits(turns=11, turn_tokens=48, observation_tokens=320, total_tokens=1024)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    WorldData(people=120, questions=60).make(folder, seed=0, rank=0, world_size=1)
    return folder


@pytest.fixture(scope="module")
def taught(world: Path) -> tuple[ProRAG, list[Episode]]:
    protocol = ProRAG(world / "tokenizer", instruction="")
    environment = RetrievalEnvironment(protocol, BM25(world / "data" / "corpus.jsonl"), top_k=3, limits=LIMITS)
    questions = list(WorldQuestions(world, split="test"))
    return protocol, rollout(environment, Teacher(world, protocol), questions, seed=0)


def test_a_search_that_finds_its_passage_has_a_gain_and_a_repeated_one_has_none(taught) -> None:
    protocol, episodes = taught
    for episode, rewards in zip(episodes, search_gain(episodes, RewardContext(protocol), penalty=0.0), strict=True):
        gold, seen = set(episode.question.gold.documents), set()
        for step, reward in zip(episode.steps, rewards.tolist(), strict=True):
            new = {hit.document.id for hit in step.hits} & gold - seen
            assert reward == pytest.approx(0.6 * len(new) / len(gold))
            seen |= new


def test_the_last_search_of_most_episodes_makes_the_answer_more_probable(world: Path, taught) -> None:
    protocol, episodes = taught
    policy = load_policy(str(Path(train.__file__).parent / "assets" / "world_base"), tokenizer=world / "tokenizer")
    rewards = answer_gain(episodes, RewardContext(protocol, InProcessSampler(policy)), difference="log")
    last = [
        max((place, gain) for place, (step, gain) in enumerate(zip(one.steps, row.tolist(), strict=True)) if step.query)
        for one, row in zip(episodes, rewards, strict=True)
    ]
    assert sum(gain > 0 for _, gain in last) > 0.7 * len(last)

"""The teacher of Self-RAG: tokens that are true of its segments, on a small world."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from datamodules.sources.world_questions import WorldQuestions, passages
from datamodules.tagged_tokenizer import TaggedTokenizer
from datamodules.world_data import WorldData
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.types import Episode, Limits
from envs.world.facts import World
from envs.world.oracle import Oracle
from evaluation.scoring import score
from systems.self_rag.protocol import SelfRAG
from systems.self_rag.reflection_teacher import ReflectionTeacher
from systems.self_rag.segment_tree import Node
from systems.self_rag.tokens import TAGS
from tests.making import run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("self_rag")
    run(WorldData(people=20, cities=6, works=10, organisations=8, countries=3, questions=80, known=0.3), folder)
    run(TaggedTokenizer(str(folder / "tokenizer"), TAGS), folder / "tagged")
    return folder


def taught(world: Path, *, wrong: float = 0.0) -> tuple[SelfRAG, list[Episode]]:
    protocol = SelfRAG(world / "tagged" / "tokenizer", depth=5, beam=1, requery=True, written=True)
    environment = RetrievalEnvironment(protocol, BM25(world / "data" / "corpus.jsonl"), limits=Limits(turns=40))
    teacher = ReflectionTeacher(world, protocol, wrong=wrong)
    environment.check(teacher)
    return protocol, rollout(environment, teacher, list(WorldQuestions(world, "sft")), seed=0)


def assert_tokens_stand_at_their_places(protocol: SelfRAG, node: Node) -> None:
    assert node.segment
    assert node.turn
    for group, number in node.segment.written.items():
        at = node.segment.places[group]
        if number is not None and at is not None:
            assert node.turn.action_ids[at : at + 1] == protocol.codec.control(getattr(protocol.tokens, group)[number])


def test_what_it_writes_is_true_and_its_answers_are_right(world: Path) -> None:
    protocol, episodes = taught(world)
    documents, facts = {one.id: one for one in passages(world)}, World.load(world)
    assert len(documents) > 40
    answered = [episode for episode in episodes if episode.answer in episode.question.answers]
    assert len(answered) > 0.9 * len(episodes)
    assert all(protocol.valid(episode) for episode in episodes)
    for episode in answered:
        hops = facts.lookups(episode.question.id)
        path = protocol.tree(episode).best.path()
        assert len(path) == len(hops), "a segment a hop"
        for node, hop in zip(path, hops, strict=True):
            assert node.passage is None if hop.known else node.passage
            assert node.passage is None or node.passage.document.id == hop.subject.id
        for node in protocol.tree(episode).nodes[1:]:
            hop = hops[len(node.path()) - 1]
            assert node.segment
            assert node.passage is None or node.segment.written["relevance"] == (
                node.passage.document.id != hop.subject.id
            )
            assert (node.text == "unknown") == (node.segment.written["relevance"] == 1)


def test_wrong_segments_say_so(world: Path) -> None:
    protocol, episodes = taught(world, wrong=1.0)
    verdicts = {
        (node.segment.written["support"], node.segment.written["utility"])
        for episode in episodes
        for node in protocol.tree(episode).nodes[1:]
        if node.segment and node.passage and node.segment.written["relevance"] == 0
    }
    assert {(1, 4), (1, None), (2, None)} <= verdicts, "partly or not supported; the answer is of no use"


def test_a_right_episode_is_no_flawed_one_to_the_oracle_where_only_the_answer_is_shown(world: Path) -> None:
    protocol = SelfRAG(world / "tagged" / "tokenizer", written=True)
    environment = RetrievalEnvironment(protocol, BM25(world / "data" / "corpus.jsonl"), limits=Limits(turns=40))
    [question] = [one for one in WorldQuestions(world, "sft") if one.gold and one.gold.hops == 1][:1]
    [episode] = rollout(environment, ReflectionTeacher(world, protocol, wrong=0), [question], seed=0)
    row = score(episode, valid=True, retrieves=True, oracle=Oracle(world), match="id")
    assert row["em"] == 1
    assert Oracle(world).judge(episode).flawed is None


def test_it_needs_a_format_whose_tokens_count_as_written(world: Path) -> None:
    protocol = SelfRAG(world / "tagged" / "tokenizer")
    with pytest.raises(ConfigError, match="`written: true`"):
        ReflectionTeacher(world, protocol).check(protocol, Limits())
    with pytest.raises(ConfigError, match="must be in"):
        ReflectionTeacher(world, protocol, wrong=1.1)

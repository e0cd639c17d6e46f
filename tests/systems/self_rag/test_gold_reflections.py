"""The teacher of Self-RAG from gold steps, on a chain and a comparison over five passages."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError, DataError
from datamodules.records import write_rows
from datamodules.tagged_tokenizer import TaggedTokenizer
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.types import Episode, Gold, GoldStep, Limits, Question
from systems.self_rag.gold_reflections import GoldReflections
from systems.self_rag.protocol import SelfRAG
from systems.self_rag.tokens import TAGS
from tests.making import run
from tests.tiny import FixedRetriever, byte_tokenizer

PASSAGES = [
    {"id": "p1", "title": "The Zone", "text": "The Zone is a film directed by Denys Desjardins."},
    {"id": "p2", "title": "Denys Desjardins", "text": "Denys Desjardins is a film maker who was born in Montreal."},
    {"id": "p3", "title": "Film", "text": "A film is a series of pictures."},
    {"id": "p4", "title": "Old Film", "text": "Old Film came out in 1920."},
    {"id": "p5", "title": "New Film", "text": "New Film came out."},
]
CHAIN = Question(
    "chain",
    "Where was the director of the film The Zone born?",
    ("Montreal",),
    Gold(
        steps=(
            GoldStep("The Zone >> director", "Denys Desjardins", ("p1",)),
            GoldStep("Denys Desjardins >> place of birth", "Montreal", ("Denys Desjardins",)),
        )
    ),
)
COMPARISON = Question(
    "comparison",
    "Which came out first, New Film or Old Film?",
    ("Old Film",),
    Gold(
        steps=(
            GoldStep("New Film >> publication date", "1930", ("p5",)),
            GoldStep("Old Film >> publication date", "1920", ("p4",)),
        )
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gold_reflections")
    write_rows(folder / "corpus.jsonl", PASSAGES)
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    run(TaggedTokenizer(str(folder / "tokenizer"), TAGS), folder / "tagged")
    return folder


@pytest.fixture(scope="module")
def protocol(folder: Path) -> SelfRAG:
    return SelfRAG(folder / "tagged" / "tokenizer", depth=5, beam=1, requery=True, written=True, segment_tokens=200)


@pytest.fixture(scope="module")
def environment(folder: Path, protocol: SelfRAG) -> RetrievalEnvironment:
    limits = Limits(turns=20, turn_tokens=200, observation_tokens=2000, total_tokens=8000)
    return RetrievalEnvironment(protocol, BM25(folder / "corpus.jsonl"), limits=limits, top_k=3)


def taught(protocol: SelfRAG, environment: RetrievalEnvironment, question: Question) -> Episode:
    teacher = GoldReflections(protocol)
    environment.check(teacher)
    assert teacher.unable([question]) == {}
    [episode] = rollout(environment, teacher, [question], seed=0)
    return episode


def test_a_chain_states_its_first_fact_searches_with_it_and_answers(
    protocol: SelfRAG, environment: RetrievalEnvironment
) -> None:
    episode = taught(protocol, environment, CHAIN)
    first, last = protocol.tree(episode).best.path()
    assert first.passage
    assert last.passage
    assert (first.passage.document.id, last.passage.document.id) == ("p1", "p2")
    assert first.text in {
        f"{asked} Denys Desjardins." for asked in ("Who is the director of The Zone?", "Who directed The Zone?")
    }
    assert (last.text, episode.answer) == ("Montreal", "Montreal")
    assert first.segment
    assert last.segment
    assert {group: number for group, number in first.segment.written.items() if number is not None} == {
        "relevance": 0, "support": 0, "retrieval": 0
    }  # fmt: skip
    assert last.segment.written["utility"] == 0
    queries = [step.query for step in episode.steps if step.query]
    assert queries == [CHAIN.text, first.text]


def test_the_second_passage_is_of_nothing_before_the_first_fact_is_known(
    protocol: SelfRAG, environment: RetrievalEnvironment
) -> None:
    nodes = [node for node in protocol.tree(taught(protocol, environment, CHAIN)).nodes[1:] if len(node.path()) == 1]
    by_passage = {node.passage.document.id: node for node in nodes if node.passage}
    assert {"p1", "p2"} <= set(by_passage)
    assert by_passage["p2"].segment
    assert by_passage["p2"].text == "unknown"
    assert by_passage["p2"].segment.written["relevance"] == 1
    assert by_passage["p2"].segment.written["utility"] == 4


def test_a_comparison_takes_either_passage_and_one_that_does_not_say_it_supports_it_partly(
    protocol: SelfRAG, environment: RetrievalEnvironment
) -> None:
    episode = taught(protocol, environment, COMPARISON)
    written = {
        node.passage.document.id: node.segment.written["support"]
        for node in protocol.tree(episode).nodes[1:]
        if node.passage and node.segment and node.segment.written["relevance"] == 0
    }
    assert written == {"p4": 0, "p5": 1}, "p5 has no year"
    assert episode.answer == "Old Film"


def test_where_nothing_is_found_it_says_so(protocol: SelfRAG) -> None:
    nothing = RetrievalEnvironment(protocol, FixedRetriever([]), limits=Limits(turns=20, turn_tokens=200), top_k=3)
    episode = taught(protocol, nothing, CHAIN)
    assert (episode.answer, [node.passage for node in protocol.tree(episode).nodes[1:]]) == ("unknown", [None])


def test_what_it_cannot_teach(folder: Path, protocol: SelfRAG, environment: RetrievalEnvironment) -> None:
    bare = Question("bare", "Who?", ("x",))
    unnamed = Question("unnamed", "Who?", ("x",), Gold(steps=(GoldStep("Who?", "x"),)))
    teacher = GoldReflections(protocol)
    assert teacher.unable([bare, unnamed, CHAIN]) == {"bare": "no gold reasoning", "unnamed": "a step names no passage"}
    with pytest.raises(DataError, match="question bare: no gold reasoning"):
        rollout(environment, teacher, [bare], seed=0)
    with pytest.raises(ConfigError, match="GoldReflections writes for SelfRAG with `written: true`"):
        teacher.check(SelfRAG(folder / "tagged" / "tokenizer"), Limits())

"""What the teacher of the world and the rule teacher write in ReasonRAG's format."""

from __future__ import annotations

from pathlib import Path

from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.teachers.gold_plans import GoldPlans
from envs.teachers.plans import PlanTeacher
from envs.types import Document, Gold, GoldStep, Question
from systems.reasonrag.parse import TAGS
from systems.reasonrag.protocol import ReasonRAG
from tests.envs.world.test_teacher import BORN, taught, written
from tests.tiny import FixedRetriever, byte_tokenizer

PROTOCOL = ReasonRAG(byte_tokenizer(TAGS))  # pyright: ignore[reportArgumentType]


def test_it_asks_and_reads_hop_by_hop(village: Path) -> None:
    episode = taught(village, BORN, paraphrases=1, protocol=PROTOCOL)
    assert written(episode) == [
        ("query", "Who is the director of The Silent Orchard?"),
        ("evidence", "Ilva Tarrow (architect)"),
        ("query", "What is the birthplace of Ilva Tarrow (architect)?"),
        ("evidence", "Keldan"),
        ("answer", "Keldan"),
    ]
    asked, read = (turn.text for turn in episode.turns[:2])
    assert asked.endswith("So the next query is <query> Who is the director of The Silent Orchard? </query>")
    assert read.endswith("<evidence> Ilva Tarrow (architect) </evidence>")
    assert "the director of The Silent Orchard is Ilva Tarrow (architect)" in read


def test_a_gold_plan_is_carried_out() -> None:
    steps = (GoldStep("director >> The Silent Orchard", "Ilva Tarrow"), GoldStep("Where was #1 born?", "Keldan"))
    asked = Question("q", "Where was the director of The Silent Orchard born?", ("Keldan",), Gold(steps=steps))
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([Document("d", "T", "text")]))
    [episode] = rollout(environment, PlanTeacher(PROTOCOL, GoldPlans()), [asked], seed=0)
    assert PROTOCOL.valid(episode)
    assert [(step.kind, step.claim) for step in episode.steps] == [
        ("query", ""),
        ("evidence", "Ilva Tarrow"),
        ("query", ""),
        ("evidence", "Keldan"),
        ("answer", "Keldan"),
    ]
    assert episode.steps[2].query == "Where was Ilva Tarrow born?"

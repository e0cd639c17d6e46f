"""Habits of the world's teacher: which known facts it searches for, and which others it states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from datamodules.sources.world_questions import WorldQuestions
from envs.interfaces import AgentFormat
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.world.facts import World
from envs.world.oracle import Oracle
from envs.world.teacher import Teacher
from tests.envs.world.test_teacher import BORN, taught, written
from tests.toy_protocols import OneMove, Spanning


@pytest.fixture(scope="module")
def taught_village(village: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The village, with the director of The Silent Orchard known by heart."""
    folder = tmp_path_factory.mktemp("taught")
    entities = [replace(e, known=("director",) if e.id == "w-000020" else ()) for e in World.load(village)]
    World(entities).save(folder / "data" / "facts.jsonl")
    return folder


@pytest.mark.parametrize("protocol", [OneMove(), Spanning()], ids=lambda protocol: type(protocol).__name__)
def test_a_teacher_with_habits_states_what_it_knows_and_some_of_what_it_does_not(
    taught_village: Path, protocol: AgentFormat
) -> None:
    """Of the director, who is known, and of the birthplace, which is not, whether it searches."""

    def searched(**habits: Any) -> list[bool]:
        episode = taught(taught_village, BORN, protocol=protocol, **habits)
        assert protocol.valid(episode)
        assert episode.answer == "Keldan"
        assert all(Oracle(taught_village).judge(episode).valid), "what it states is true, and needs no passage"
        claims = {"Ilva Tarrow (architect)": True, "Keldan": True}
        claims |= {step.claim: not step.recall for step in episode.steps if step.claim and step.kind != "answer"}
        return list(claims.values())

    assert searched() == [True, True]
    assert searched(search_known=0.0) == [False, True]
    assert searched(state_unknown=1.0) == [True, False]
    assert searched(search_known=0.0, state_unknown=1.0) == [False, False]


def test_habits_are_shares_of_hops_by_their_hash(made: Path) -> None:
    """In a world without known facts a quarter of all hops is stated: the same each time, others for another seed."""
    protocol = OneMove()
    environment = RetrievalEnvironment(protocol, BM25(made / "data" / "corpus.jsonl"))
    asked = list(WorldQuestions(made, "sft"))[:60]

    def stated(seed: int = 0) -> list[bool]:
        teacher = Teacher(made, protocol, state_unknown=0.25, search_known=0.0, seed=seed)
        return [
            s.recall
            for e in rollout(environment, teacher, asked, seed=1)
            for s in e.steps
            if s.kind in ("note", "know")
        ]

    first = stated()
    assert 0.19 < sum(first) / len(first) < 0.31
    assert stated() == first
    assert stated(seed=1) != first


def test_in_a_format_that_cannot_recall_a_teacher_searches_for_everything(taught_village: Path) -> None:
    habits: dict[str, Any] = {"search_known": 0.0, "state_unknown": 1.0}
    assert written(taught(taught_village, BORN, paraphrases=1, **habits)) == written(
        taught(taught_village, BORN, paraphrases=1)
    )


def test_a_share_out_of_range_is_refused(village: Path) -> None:
    with pytest.raises(ConfigError, match=r"Teacher: state_unknown 1.5 must be in \[0, 1\]"):
        taught(village, BORN, state_unknown=1.5)

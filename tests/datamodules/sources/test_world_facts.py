"""Single facts as questions: every known one in every wording, and the others apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import DataError
from datamodules.sources.world_facts import WorldFacts
from datamodules.world_data import WorldData
from envs.world.facts import World
from envs.world.relations import RELATIONS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    stage = WorldData(
        people=20, cities=6, works=8, organisations=6, countries=3, questions=60, known=0.4, paraphrases=2
    )
    stage.make(folder, seed=0, rank=0, world_size=1)
    return folder


def test_every_fact_is_asked_for_in_every_wording_once(world: Path) -> None:
    known, unknown = list(WorldFacts(world)), list(WorldFacts(world, known=False))
    facts = list(World.load(world).facts())
    assert (len(known), len(unknown)) == (2 * sum(h.known for h in facts), 2 * sum(not h.known for h in facts))
    assert len({question.id for question in known + unknown}) == 2 * len(facts)
    assert len({question.text for question in known + unknown}) == 2 * len(facts)


def test_a_question_is_a_wording_of_its_fact(world: Path) -> None:
    hop = next(hop for hop in World.load(world).facts() if hop.known)
    first, second = (q for q in WorldFacts(world) if q.id.startswith(f"w-fact-{hop.subject.id[2:]}-{hop.relation}-"))
    assert (first.id[-2:], second.id[-2:]) == ("-0", "-1")
    assert [first.text, second.text] == [w.format(x=hop.subject.title) for w in RELATIONS[hop.relation].questions[:2]]
    assert first.answers == second.answers == hop.value.names()
    assert first.gold is not None
    assert (first.gold.hops, first.gold.documents) == (1, (hop.subject.id,))


def test_its_passages_are_the_worlds(world: Path) -> None:
    assert len(list(WorldFacts(world).documents())) == 43


def test_without_a_world_there_are_no_facts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no world at"):
        list(WorldFacts(tmp_path))

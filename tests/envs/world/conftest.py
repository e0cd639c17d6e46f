"""Two worlds: a small one as the stage makes it, and one written by hand, whose every fact a test may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from datamodules.world_data import WorldData
from envs.world.facts import Entity, World


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage folder of a small world with namesakes and comparisons."""
    folder = tmp_path_factory.mktemp("made")
    stage = WorldData(
        people=60,
        cities=16,
        works=30,
        organisations=20,
        countries=5,
        hops=(1, 2, 3, 4),
        comparison=60,
        questions=900,
        namesakes=0.2,
    )
    stage.make(folder, seed=3, rank=0, world_size=1)
    return folder


@pytest.fixture(scope="session")
def made_world(made: Path) -> World:
    return World.load(made)


@pytest.fixture(scope="session")
def village(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world by hand: two Ilva Tarrows, a film by one of them, a foundry, two towns in one country."""
    person = {"birthplace": "w-000010", "employer": "w-000030"}
    entities = [
        Entity("w-000001", "person", "Ilva Tarrow", "architect", "Ilva Tarrow (architect)", person),
        Entity("w-000002", "person", "Ilva Tarrow", "painter", "Ilva Tarrow (painter)", {"birthplace": "w-000011"}),
        Entity("w-000003", "person", "Oren Vask", "poet", "Oren Vask", {**person, "spouse": "w-000004"}),
        Entity("w-000004", "person", "Mara Lune", "pilot", "Mara Lune", {**person, "spouse": "w-000003"}),
        Entity("w-000010", "city", "Keldan", "city", "Keldan", {"country": "w-000040", "mayor": "w-000003"}),
        Entity("w-000011", "city", "Brimby", "city", "Brimby", {"country": "w-000040", "mayor": "w-000004"}),
        Entity(
            "w-000020",
            "work",
            "The Silent Orchard",
            "film",
            "The Silent Orchard",
            {"director": "w-000001", "composer": "w-000002", "studio": "w-000030"},
        ),
        Entity(
            "w-000030",
            "organisation",
            "Mallow Foundry",
            "company",
            "Mallow Foundry",
            {"headquarters": "w-000011", "founder": "w-000003"},
        ),
        Entity("w-000040", "country", "Veldia", "country", "Veldia", {"capital": "w-000010", "leader": "w-000002"}),
    ]
    folder = tmp_path_factory.mktemp("village")
    World(entities).save(folder / "data" / "facts.jsonl")
    return folder

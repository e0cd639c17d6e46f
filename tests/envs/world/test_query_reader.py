from __future__ import annotations

from pathlib import Path

import pytest

from envs.world.facts import World
from envs.world.query_reader import Reader
from envs.world.relations import RELATIONS, TYPES


def asked(village: Path, query: str) -> set[tuple[str, str]]:
    world = World.load(village)
    return {(world.entities[entity].title, relation) for entity, relation in Reader(world).read(query).asked}


def test_every_wording_of_a_sub_question_is_read_as_what_it_asks(made_world: World) -> None:
    reader = Reader(made_world)
    for entity in made_world:
        for relation in entity.facts:
            for wording in RELATIONS[relation].questions:
                reading = reader.read(wording.format(x=entity.title))
                assert reading.asked == {(entity.id, relation)}
                assert all(relation in cue for cue in reading.cues)


@pytest.mark.parametrize(
    ("query", "entity", "relation"),
    [
        ("oren vask birthplace", "Oren Vask", "birthplace"),
        ("Birth city of OREN VASK", "Oren Vask", "birthplace"),
        ("Oren Vask's wife", "Oren Vask", "spouse"),
        ("Who did Oren Vask marry?", "Oren Vask", "spouse"),
        ("Where does Oren Vask work?", "Oren Vask", "employer"),
        ("Which firm is the poet Oren Vask with?", "Oren Vask", "employer"),
        ("Where is Keldan located?", "Keldan", "country"),
        ("Where is Keldan?", "Keldan", "country"),
        ("mayor of the city of Keldan", "Keldan", "mayor"),
        ('Who directed the film "Silent Orchard"?', "The Silent Orchard", "director"),
        ("soundtrack of the silent orchard", "The Silent Orchard", "composer"),
        ("What company produced The Silent Orchard?", "The Silent Orchard", "studio"),
        ("Where is Mallow Foundry's head office located?", "Mallow Foundry", "headquarters"),
        ("Who started Mallow Foundry?", "Mallow Foundry", "founder"),
        ("Which city in the country Veldia is its capital?", "Veldia", "capital"),
        ("Who is the head of state of Veldia?", "Veldia", "leader"),
        ("Where was Ilva Tarrow (painter) born?", "Ilva Tarrow (painter)", "birthplace"),
        ("Where was the architect Ilva Tarrow born?", "Ilva Tarrow (architect)", "birthplace"),
        ("An architect asks where Ilva Tarrow (painter) was born.", "Ilva Tarrow (painter)", "birthplace"),
        ("Where was the director Mara Lune born?", "Mara Lune", "birthplace"),
        ("Who founded the studio Mallow Foundry?", "Mallow Foundry", "founder"),
        ("Who leads the country of Veldia?", "Veldia", "leader"),
    ],
)  # fmt: skip
def test_free_english_is_understood(village: Path, query: str, entity: str, relation: str) -> None:
    assert asked(village, query) == {(entity, relation)}


@pytest.mark.parametrize(
    "query",
    [
        "Where was Ilva Tarrow born?",  # which of the two?
        "Where was the architect or painter Ilva Tarrow born?",
        "Where was Tarrow born?",
        "Where was the director of the film born?",
        "Tell me about Oren Vask.",
        "Who is the spouse of Keldan?",
        "",
    ],
)
def test_a_query_that_names_no_entity_or_no_relation_of_it_asks_for_nothing(village: Path, query: str) -> None:
    assert asked(village, query) == set()


def test_a_query_for_two_things_asks_for_both(village: Path) -> None:
    assert asked(village, "What are the birthplace and the spouse of Oren Vask?") == {
        ("Oren Vask", "birthplace"),
        ("Oren Vask", "spouse"),
    }
    assert asked(village, "Were Oren Vask and Mara Lune born in the same city?") == {
        ("Oren Vask", "birthplace"),
        ("Mara Lune", "birthplace"),
    }


def test_the_type_that_tells_namesakes_apart_is_no_cue() -> None:
    cues = set().union(*(relation.cues | relation.hints for relation in RELATIONS.values()))
    assert not {type_ for kind in ("person", "work") for type_ in TYPES[kind]} & cues

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import DataError
from envs.types import Document
from envs.world.facts import World, make_world
from envs.world.names import Names
from envs.world.passages import passage
from envs.world.relations import RELATIONS, relations_of
from envs.world.vocabulary import english

COUNTS = {"person": 120, "city": 30, "work": 60, "organisation": 40, "country": 8}
NAMES = Names(COUNTS, english())


def small(seed: int = 0, skew: float = 1.0, namesakes: float = 0.1) -> World:
    return make_world(NAMES, seed=seed, skew=skew, namesakes=namesakes)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_every_world_is_consistent(seed: int) -> None:
    world = small(seed)
    for entity in world:
        assert set(entity.facts) <= {relation.name for relation in relations_of(entity.kind)}
        for relation, value in entity.facts.items():
            assert world.entities[value].kind == RELATIONS[relation].object
        if entity.kind == "country":
            assert world.entities[entity.facts["capital"]].facts["country"] == entity.id
        if "spouse" in entity.facts:
            spouse = world.entities[entity.facts["spouse"]]
            assert spouse is not entity
            assert spouse.facts["spouse"] == entity.id
    assert len({entity.title for entity in world}) == len(world)
    for relation in ("mayor", "leader"):  # nobody holds two offices of a kind
        holders = [entity.facts[relation] for entity in world if relation in entity.facts]
        assert len(set(holders)) == len(holders)


def test_a_world_of_the_default_size_has_258_entities_and_696_facts() -> None:
    world = small()
    assert len(world) == 258
    assert sum(len(entity.facts) for entity in world) == 696


def test_namesakes_share_a_name_and_differ_in_type_and_title() -> None:
    world = small(namesakes=0.1)
    shared = Counter(entity.name for entity in world)
    people = [entity for entity in world if entity.kind == "person" and shared[entity.name] == 2]
    works = [entity for entity in world if entity.kind == "work" and shared[entity.name] == 2]
    assert (len(people), len(works)) == (12, 6)
    assert all(entity.title == f"{entity.name} ({entity.type})" for entity in people + works)
    assert all(entity.title == entity.name for entity in world if shared[entity.name] == 1)
    assert all(entity.title == entity.name for entity in small(namesakes=0.0))


def test_skew_makes_some_values_popular() -> None:
    def most(skew: float) -> int:
        birthplaces = Counter(entity.facts.get("birthplace") for entity in small(skew=skew) if entity.kind == "person")
        return max(birthplaces.values())

    assert most(0.0) < 12  # 120 people, 30 cities
    assert most(1.0) > 20
    assert most(2.0) > 55


def test_names_share_parts_so_that_wrong_entities_look_like_the_right_one() -> None:
    people = [entity.name.split() for entity in small() if entity.kind == "person"]
    for part in (0, 1):
        assert max(Counter(name[part] for name in people).values()) >= 4


def test_worlds_of_one_size_are_named_from_the_same_words_whatever_the_seed() -> None:
    words = NAMES.words()
    for seed in (1, 2):
        named = {word for entity in small(seed) for word in entity.name.split()} - {"The"}
        assert named <= words
    assert small(1).entities["w-000000"].name != small(2).entities["w-000000"].name


def test_no_name_is_an_english_word_of_the_wordings() -> None:
    assert not {word.lower() for word in NAMES.words()} & english()


def test_the_first_of_a_large_world_needs_longer_and_more_names() -> None:
    counts = {"person": 5000, "city": 500, "work": 2500, "organisation": 1500, "country": 40}
    world = make_world(Names(counts, english()), seed=0, skew=1.0, namesakes=0.1)
    assert len({entity.title for entity in world}) == 9540


def test_a_passage_states_every_fact_in_two_or_three_sentences() -> None:
    world = small()
    for entity in world:
        document = passage(world, entity, seed=0, paraphrases=3)
        assert (document.id, document.title) == (entity.id, entity.title)
        assert 2 <= document.text.count(".") <= 3
        assert entity.name in document.text
        assert entity.type in document.text
        for value in entity.facts.values():
            assert world.entities[value].title in document.text


def test_paraphrases_say_how_many_wordings_there_are(village: Path) -> None:
    world = World.load(village)
    entity = world.entities["w-000011"]
    assert passage(world, entity, seed=0, paraphrases=1) == Document(
        "w-000011", "Brimby", "Brimby is a city in Veldia. Its mayor is Mara Lune."
    )
    assert len({passage(world, entity, seed=seed, paraphrases=3).text for seed in range(60)}) == 9


def test_a_world_is_read_as_it_was_written(tmp_path: Path) -> None:
    world = small()
    world.save(tmp_path / "data" / "facts.jsonl")
    assert World.load(tmp_path).entities == world.entities


def test_a_missing_world_and_a_damaged_row_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no world at"):
        World.load(tmp_path)
    path = tmp_path / "data" / "facts.jsonl"
    small().save(path)
    lines = path.read_text().splitlines()
    for damaged in ("{", "[]", '{"schema": "facts/2"}', '{"schema": "facts/1", "id": "w-000000"}'):
        path.write_text("\n".join([*lines[:6], damaged]))
        with pytest.raises(DataError, match=r"facts\.jsonl:7: not a row of facts/1"):
            World.load(tmp_path)


def test_look_ups_are_read_from_the_id_of_a_question(village: Path) -> None:
    world = World.load(village)
    hops = world.lookups("w-3hop-000020-director-birthplace-mayor")
    assert [hop.value.title for hop in hops] == ["Ilva Tarrow (architect)", "Keldan", "Oren Vask"]
    sides = world.lookups("w-compare-000010-000011-country")
    assert [(hop.subject.title, hop.value.title) for hop in sides] == [("Keldan", "Veldia"), ("Brimby", "Veldia")]
    for foreign in ("2hop__1_2", "w-1hop-000099-mayor", "w-1hop-000010-spouse", "w-compare-000010-country"):
        with pytest.raises(DataError, match=f"question {foreign} is not of this world"):
            world.lookups(foreign)

from __future__ import annotations

import re
from random import Random

import pytest

from common.errors import ConfigError
from envs.world.drills import DRILLS, Drills
from envs.world.facts import World
from envs.world.names import Names
from envs.world.vocabulary import english

NAMES = Names({"person": 40, "city": 12, "work": 20, "organisation": 15, "country": 4}, english())


def made(seed: int) -> Drills:
    return Drills(NAMES, seed=seed, asked="Question: {question}", first=0.5)


@pytest.fixture(scope="module")
def drills() -> Drills:
    return made(7)


def texts(drills: Drills, kind: str, count: int = 40) -> list[list[tuple[str, bool]]]:
    return [drills.draw(kind, Random(number)) for number in range(count)]


def documents(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^Doc \d\(Title: (.*?)\) ((?:(?!Doc \d).)*)$", text, re.MULTILINE)


def test_what_is_read_stands_in_the_passages_shown_before(drills: Drills) -> None:
    for kind in ("reading", "session"):
        for pieces in texts(drills, kind):
            shown = ""
            values = {entity.title for entity in drills.world}
            for text, learnt in pieces:
                if text.startswith("Doc 1("):
                    shown = text
                elif learnt and text.removesuffix(".") in values:
                    assert text.removesuffix(".") in shown


def test_passages_are_three_of_the_drills_own_world(drills: Drills) -> None:
    titles = {entity.title for entity in drills.world}
    for pieces in texts(drills, "session"):
        for shown in (text for text, _ in pieces if text.startswith("Doc 1(")):
            names = [title for title, _ in documents(shown)]
            assert len(names) == len(set(names)) == 3
            assert titles.issuperset(names)


def test_the_passage_that_is_needed_is_not_always_the_first(drills: Drills) -> None:
    places = []
    for pieces in texts(drills, "session", 200):
        asked = next(text for text, learnt in pieces if learnt)
        shown = next(text for text, _ in pieces if text.startswith("Doc 1("))
        found = [number for number, (title, _) in enumerate(documents(shown)) if title in asked]
        places += found[:1]
    assert len(places) > 190
    assert 0.5 < places.count(0) / len(places) < 0.85
    assert places.count(2) > 10


def test_chains_end_in_the_value_of_their_last_look_up_and_never_come_back(drills: Drills) -> None:
    for pieces in texts(drills, "plan", 100):
        found = [text for text, learnt in pieces[1:] if not learnt]
        assert pieces[-1] == (found[-1], True)
        assert len(set(found)) == len(found) <= 3


def test_questions_and_passages_are_given_not_learnt(drills: Drills) -> None:
    for kind in DRILLS:
        learnt = [text for pieces in texts(drills, kind) for text, learnt in pieces if learnt]
        assert not [text for text in learnt if text.startswith(("Question:", "Doc 1("))]


def test_the_same_seeds_say_the_same_and_other_worlds_hold_other_facts(drills: Drills) -> None:
    assert texts(made(7), "session") == texts(drills, "session")
    one, other = drills.world, made(8).world
    assert len(facts(one) & facts(other)) < 0.05 * len(facts(one))


def facts(world: World) -> set[tuple[str, str, str]]:
    return {
        (entity.name, relation, world.entities[value].name)
        for entity in world
        for relation, value in entity.facts.items()
    }


def test_a_world_with_too_few_of_a_kind_is_refused() -> None:
    names = Names({"person": 40, "city": 12, "work": 2, "organisation": 15, "country": 4}, english())
    with pytest.raises(ConfigError, match="the world has 2 entities of kind work, a drill shows 3"):
        Drills(names, seed=7, asked="{question}", first=0.5)

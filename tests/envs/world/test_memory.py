"""Searches for what is known by heart, and statements that are not true, on a world written by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from envs.types import Episode, Step
from envs.world.facts import World
from envs.world.oracle import Oracle
from envs.world.questions import question

BORN = "w-2hop-000020-director-birthplace"  # The Silent Orchard - Ilva Tarrow (architect) - Keldan
KNOWN = {"w-000020": ("director",), "w-000003": ("spouse",)}


@pytest.fixture(scope="module")
def taught(village: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The village, with the director of The Silent Orchard and the spouse of Oren Vask known by heart."""
    folder = tmp_path_factory.mktemp("taught")
    entities = [dataclasses.replace(entity, known=KNOWN.get(entity.id, ())) for entity in World.load(village)]
    World(entities).save(folder / "data" / "facts.jsonl")
    return folder


def episode(world: Path, *steps: Step) -> Episode:
    return Episode(question(World.load(world), BORN, seed=0, paraphrases=3), (), steps=steps)


def asks(query: str, spans: tuple[tuple[int, int, int], ...] = ((0, 0, 1),)) -> Step:
    return Step("query", True, spans, query=query)


def states(claim: str, said: str = "", spans: tuple[tuple[int, int, int], ...] = ((0, 0, 1),)) -> Step:
    return Step("own", True, spans, claim=claim, said=said, recall=True)


def needless(world: Path, query: str) -> bool | None:
    return Oracle(world).judge(episode(world, asks(query))).needless[0]


@pytest.mark.parametrize(
    ("query", "verdict"),
    [
        ("Who directed The Silent Orchard?", True),
        ("the silent orchard director", True),
        ("Who is the spouse of Oren Vask?", True),
        ("Who is the spouse of Mara Lune?", False),  # the same couple, but asked for from the other side
        ("Who composed the music of The Silent Orchard?", False),
        ("Where was Ilva Tarrow (architect) born?", False),
        ("Who are the director and the composer of The Silent Orchard?", None),  # two facts
        ("What is the birthplace of the director of The Silent Orchard?", None),  # a chain
        ("Who directed The Silent Orchard with Mara Lune?", None),
        ("Where was Ilva Tarrow born?", None),  # there are two
        ("Tell me about the orchard.", None),
    ],
)
def test_a_search_is_needless_if_it_asks_for_one_known_fact(taught: Path, query: str, verdict: bool | None) -> None:
    assert needless(taught, query) is verdict


def test_in_a_world_without_known_facts_no_search_can_be_needless(village: Path) -> None:
    assert needless(village, "Who directed The Silent Orchard?") is None


@pytest.mark.parametrize(
    ("claim", "said", "untrue"),
    [
        ("Keldan", "I know that the birthplace of Ilva Tarrow (architect) is Keldan.", False),
        ("Brimby", "I know that the birthplace of Ilva Tarrow (architect) is Brimby.", True),
        ("Keldan", "I know that the birthplace of Ilva Tarrow (painter) is Keldan.", True),  # that one is from Brimby
        ("Mara Lune", "The spouse of Oren Vask is Mara Lune.", False),  # true, though no part of the question
        ("Oren Vask", "The mayor of Keldan is Oren Vask.", False),
        ("Keldan", "I know it.", False),  # a value on the question's chain
        ("Oren Vask", "I know it.", True),
        ("The capital of Veldia is Keldan.", "", False),
        ("The capital of Veldia is Brimby.", "", True),
        ("unknown", "I could not find the director of The Silent Orchard.", True),
    ],
)
def test_a_statement_is_unfounded_if_it_is_not_true(taught: Path, claim: str, said: str, untrue: bool) -> None:
    assert Oracle(taught).judge(episode(taught, states(claim, said))).unfounded == (untrue,)


def test_each_verdict_is_of_its_own_kind_of_step(taught: Path) -> None:
    read = Step("subanswer", True, ((1, 0, 1),), claim="Mara Lune")
    answer = Step("answer", True, ((3, 0, 1),), claim="Brimby")
    steps = (asks("Who directed The Silent Orchard?"), read, states("Brimby"), answer)
    judgement = Oracle(taught).judge(episode(taught, *steps))
    assert judgement.needless == (True, None, None, None)
    assert judgement.unfounded == (None, None, True, None), "a claim that reads a search is no statement"


def test_what_the_policy_did_not_write_has_no_verdict(taught: Path) -> None:
    frozen = asks("Who directed The Silent Orchard?", ()), states("Brimby", spans=())
    judgement = Oracle(taught).judge(episode(taught, *frozen, states("Keldan")))
    assert (judgement.needless, judgement.unfounded) == ((None,) * 3, (None, None, False))


def test_a_format_that_shows_the_answer_alone_has_no_verdict(taught: Path) -> None:
    bare = Step("answer", True, ((0, 0, 1),), claim=None)
    judgement = Oracle(taught).judge(episode(taught, bare))
    assert (judgement.needless, judgement.unfounded) == ((None,), (None,))

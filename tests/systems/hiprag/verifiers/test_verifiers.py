"""Verifiers without a model: what says the same, what holds, and where there is no verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from common.errors import ConfigError, DataError
from envs.types import Episode, Gold, GoldStep, Question, Step
from systems.hiprag.checks import Check
from systems.hiprag.verifiers.equality import Equality
from systems.hiprag.verifiers.gold_steps import GoldSteps
from systems.hiprag.verifiers.world_truth import WorldTruth

SPAN = ((0, 0, 1),)
GOLD = Gold(2, steps=(GoldStep("Who directed The Reed?", "Oren Vask"), GoldStep("#1 born in?", "Keldan Town")))


def needless(query: str, claim: str, answer: str, gold: Gold | None = None) -> Check:
    """A search step whose claim is compared with the policy's own answer."""
    step = Step("search", True, SPAN, query=query, claim=claim, said=f"I ask.</reasoning><search>{query}</search>")
    return _check("over_search", step, gold, answer)


def stated(said: str, claim: str, gold: Gold | None = None) -> Check:
    """A step that states a claim without a search."""
    text = f"<step><reasoning>{said}</reasoning><conclusion>{claim}</conclusion></step>"
    return _check("under_search", Step("statement", True, SPAN, claim=claim, said=text, recall=True), gold)


def _check(kind: Literal["over_search", "under_search"], step: Step, gold: Gold | None, answer: str = "") -> Check:
    before = Step("statement", True, SPAN, claim="Brimby", recall=True)
    question = Question("q", "Where was the director of The Reed born?", ("Keldan",), gold)
    return Check(kind, Episode(question, (), steps=(before, step)), 1, answer)


WHO = "Who directed The Silent Orchard?"


@pytest.mark.parametrize(
    ("query", "claim", "answer", "same"),
    [
        (WHO, "Ilva Tarrow (architect)", "ilva tarrow architect", True),
        (WHO, "Ilva Tarrow (architect)", "Ilva Tarrow", True),  # a name of the same person
        (WHO, "Ilva Tarrow (architect)", "The director of The Silent Orchard is Ilva Tarrow (architect).", True),
        (WHO, "Ilva Tarrow (architect)", "Ilva Tarrow (painter)", False),
        (WHO, "Ilva Tarrow (architect)", "Oren Vask", False),
        (WHO, "unknown", "unknown", True),  # equal, whatever it is worth
        (WHO, "Ilva Tarrow (architect)", "", False),
        (WHO, "", "", False),
        ("nonsense", "Keldan", "Brimby", False),
    ],
)
def test_the_world_knows_who_is_the_same(village: Path, query: str, claim: str, answer: str, same: bool) -> None:
    assert WorldTruth(village).verify([needless(query, claim, answer)]) == [same]


@pytest.mark.parametrize(
    ("said", "claim", "holds"),
    [
        ("I know that the spouse of Oren Vask is Mara Lune.", "Mara Lune", True),
        ("I need not search for the spouse of Oren Vask.", "Mara Lune", True),
        ("I need not search for the spouse of Oren Vask.", "Ilva Tarrow (painter)", False),
        ("I know that the spouse of Oren Vask is Mara Lune.", "Keldan", False),  # it does not follow
        ("I know it.", "Mara Lune", False),  # of what?
        ("I know the birthplace of Oren Vask.", "Brimby", False),
    ],
)
def test_the_world_knows_what_holds(village: Path, said: str, claim: str, holds: bool) -> None:
    assert WorldTruth(village).verify([stated(said, claim)]) == [holds]


def test_without_a_world_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no world at"):
        WorldTruth(tmp_path)


@pytest.mark.parametrize(
    ("claim", "answer", "verdict"),
    [
        ("Oren Vask", "oren vask", True),
        ("Vask, Oren", "Oren Vask", True),  # the same words
        ("Oren Vask", "Keldan Town", False),  # two gold answers
        ("Oren Vask", "Mara Lune", False),
        ("Mara Lune", "Oren Vask", False),
        ("Mara Lune", "the Mara Lune", True),
        ("Mara Lune", "Ilva Tarrow", None),  # gold speaks of neither
        ("", "", None),
    ],
)
def test_gold_steps_tell_what_is_the_same(claim: str, answer: str, verdict: bool | None) -> None:
    assert GoldSteps().verify([needless("who?", claim, answer, GOLD)]) == [verdict]
    assert GoldSteps().verify([needless("who?", claim, answer)]) == [None]


@pytest.mark.parametrize(("claim", "verdict"), [("Oren Vask", True), ("Keldan", True), ("Mara Lune", False)])
def test_gold_steps_tell_what_holds(claim: str, verdict: bool) -> None:
    assert GoldSteps().verify([stated("I know.", claim, GOLD)]) == [verdict]
    assert GoldSteps().verify([stated("I know.", claim)]) == [None]
    with pytest.raises(ConfigError, match="min_f1"):
        GoldSteps(min_f1=0)


def test_equality_compares_texts_and_knows_nothing_of_statements() -> None:
    checks = [
        needless("who?", "The Oren Vask", "oren vask!"),
        needless("who?", "Oren Vask", "Oren"),
        needless("who?", "", ""),
        stated("I know.", "x"),
    ]
    assert Equality().verify(checks) == [True, False, False, None]


def test_the_claim_that_is_compared_is_the_one_that_reads_the_search() -> None:
    """In a format where the claim is a step of its own."""
    steps = (Step("query", True, SPAN, query="who?"), Step("subanswer", True, SPAN, claim="Ada"))
    episode = Episode(Question("q", "?", ("Ada",)), (), steps=steps)
    assert Equality().verify([Check("over_search", episode, 0, "ada")]) == [True]

"""The world's oracle on formats other than ProRAG's: several acts in a step, no claims, claims as sentences."""

from pathlib import Path
from typing import Any

import pytest

from envs.protocols.direct import Direct
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Hit, Step
from envs.world.facts import World
from envs.world.oracle import Judgement, Oracle
from envs.world.questions import question
from tests.envs.world.test_oracle import (
    ARCHITECT,
    BIRTHPLACE,
    BORN,
    BRIMBY,
    DIRECTOR,
    FILM,
    KELDAN,
    PILOT,
    verdicts,
)
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer

SEARCH, CLAIMS_ILVA = DIRECTOR[1], "Ilva Tarrow (architect)"


def judged(village: Path, *steps: Step, identity: str = BORN) -> Judgement:
    """Judge an episode of steps in any format; the answer is the claim of its answer step."""
    asked = question(World.load(village), identity, seed=0, paraphrases=3)
    answer = next((step.claim or "" for step in steps if step.kind == "answer"), "")
    return verdicts(village, Episode(asked, (), steps=steps, answer=answer))


def wrote(query: str = "", claim: str | None = "", *hits: str, **more: Any) -> Step:
    """A step of some other format, its kind a word that the oracle has never seen."""
    found = tuple(Hit(Document(hit, "", "")) for hit in hits)
    return Step(**{"kind": "own", "valid": True, "spans": ((0, 0, 1),), **more}, query=query, claim=claim, hits=found)


ANSWERS = wrote("", "Keldan", kind="answer")


FLAWLESS = {"resolved": True, "flawed": False, "unresolved": False}


def test_a_step_may_search_and_claim_at_once(village: Path) -> None:
    first, second = wrote(SEARCH, CLAIMS_ILVA, FILM), wrote(BIRTHPLACE[1], "Keldan", ARCHITECT)
    assert judged(village, first, second, ANSWERS) == Judgement((True,) * 3, **FLAWLESS)
    wrong = wrote(SEARCH, "Mara Lune", FILM)
    assert judged(village, wrong, second, ANSWERS).valid == (False, False, False)
    idle = wrote("Who is the mayor of Keldan?", "Oren Vask", KELDAN)
    assert judged(village, first, idle, second, ANSWERS).valid == (
        True,
        False,
        True,
        True,
    )  # a true claim, an idle query


def test_in_a_format_without_claims_a_hop_is_settled_by_finding_its_passage(village: Path) -> None:
    first, second = wrote(SEARCH, None, FILM), wrote(BIRTHPLACE[1], None, ARCHITECT)
    assert judged(village, first, second, ANSWERS) == Judgement((True,) * 3, **FLAWLESS)
    assert judged(village, first, ANSWERS).unresolved
    assert judged(village, first, first, second, ANSWERS).valid == (True, False, True, True)
    missed = wrote(SEARCH, None, BRIMBY)
    assert judged(village, missed, second, ANSWERS).valid == (False, False, False)
    assert judged(village, wrote("", None), first).valid == (False, True)


def test_a_claim_from_memory_needs_no_passage(village: Path) -> None:
    known, first = wrote("", "Keldan", recall=True), wrote(SEARCH, CLAIMS_ILVA, FILM)
    assert judged(village, first, known, ANSWERS) == Judgement((True,) * 3, **FLAWLESS)
    assert judged(village, known, first, ANSWERS).valid == (False, True, False)  # of a hop that is not reached yet
    again = wrote("", CLAIMS_ILVA, recall=True)
    assert judged(village, first, again, known, ANSWERS).valid == (True,) * 4
    assert judged(village, first, wrote("", "Brimby", recall=True)).valid == (True, False)
    assert judged(village, first, wrote("", "Keldan")).valid == (True, False)  # read, says the step, but nowhere found


@pytest.mark.parametrize(
    ("claim", "true"),
    [
        ("The director of The Silent Orchard is Ilva Tarrow (architect).", True),
        ("The Silent Orchard was directed by the architect Ilva Tarrow.", True),
        ("The director of The Silent Orchard is Mara Lune.", False),
        ("The composer of The Silent Orchard is Ilva Tarrow (architect).", False),
        ("The director of The Silent Orchard is not Ilva Tarrow (architect).", False),
        ("The director of The Silent Orchard is Mara Lune or Ilva Tarrow (architect).", False),
        ("The director and the composer of The Silent Orchard are Ilva Tarrow.", False),
        ("The director is Ilva Tarrow (architect).", False),
        ("Ilva Tarrow (architect) and The Silent Orchard.", False),
    ],
)
def test_a_claim_may_be_a_sentence_about_one_fact(village: Path, claim: str, true: bool) -> None:
    assert judged(village, wrote(SEARCH, claim, FILM)).valid == (true,)
    assert judged(village, wrote("", claim, recall=True)).valid == (true,)


def test_a_sentence_about_a_relation_that_goes_both_ways_is_read(village: Path) -> None:
    asks = wrote("Who is the spouse of Mara Lune?", "The spouse of Mara Lune is Oren Vask.", PILOT)
    assert judged(village, asks, identity="w-1hop-000004-spouse").valid == (True,)


def test_of_what_was_thrown_away_there_is_no_truth_to_tell(village: Path) -> None:
    draft = wrote("", None, kind="draft", dropped=True)
    assert judged(village, draft, wrote(SEARCH, CLAIMS_ILVA, FILM)).valid == (None, True)


def test_what_the_policy_did_not_write_is_not_judged_but_counts(village: Path) -> None:
    scripted = wrote("Where was the director born?", "", FILM, spans=())
    first, second = wrote(SEARCH, CLAIMS_ILVA, FILM), wrote(BIRTHPLACE[1], "Keldan", ARCHITECT)
    assert judged(village, scripted, first, second, ANSWERS) == Judgement((None, True, True, True), **FLAWLESS)
    assert judged(village, wrote(SEARCH, None, FILM, spans=()), second, ANSWERS).valid == (None, True, True)


def test_of_a_format_that_shows_the_answer_alone_nothing_can_be_said(village: Path) -> None:
    unknown = Judgement((None, None), resolved=None, flawed=None, unresolved=None)
    scripted, bare = wrote(SEARCH, None, FILM, spans=()), wrote("", None, kind="answer")
    assert judged(village, scripted, bare) == unknown


@pytest.mark.parametrize("retrieve", [False, True])
def test_an_answer_without_steps_before_it_has_no_verdict(village: Path, retrieve: bool) -> None:
    protocol = Direct(byte_tokenizer(), retrieve=retrieve)  # type: ignore[arg-type] (a loaded one will do)
    environment = RetrievalEnvironment(protocol, FixedRetriever([Document(FILM, "", "")]))
    asked = question(World.load(village), BORN, seed=0, paraphrases=3)
    [episode] = rollout(environment, Scripted(protocol.codec.control, lambda _: "Keldan"), [asked], seed=0)
    assert episode.answer == "Keldan"
    judgement = Oracle(village).judge(episode)
    assert (set(judgement.valid), judgement.flawed, judgement.unresolved) == ({None}, None, None)

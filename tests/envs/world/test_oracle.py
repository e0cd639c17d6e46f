from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from envs.protocols.direct import Direct
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Hit, Step
from envs.world.facts import World
from envs.world.oracle import Judgement, Oracle
from envs.world.questions import question
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer

FILM, ARCHITECT, PILOT = "w-000020", "w-000001", "w-000004"
KELDAN, BRIMBY, FOUNDRY, VELDIA = "w-000010", "w-000011", "w-000030", "w-000040"
BORN = "w-2hop-000020-director-birthplace"

DIRECTOR = ("query", "Who directed The Silent Orchard?", FILM)
IS_ILVA = ("subanswer", "Ilva Tarrow (architect)")
BIRTHPLACE = ("query", "Where was Ilva Tarrow (architect) born?", ARCHITECT)
IS_KELDAN = ("subanswer", "Keldan")
KELDAN_IT_IS = ("answer", "Keldan")


def judge(village: Path, identity: str, *steps: tuple[str, ...], malformed: int | None = None) -> Judgement:
    """Judge an episode of (kind, text, ids of hits...) steps."""
    written = tuple(
        Step(
            kind,
            index != malformed,
            ((index, 0, 1),),
            query=text if kind == "query" else "",
            claim={"query": "", "subanswer": text, "answer": text}.get(kind),
            hits=tuple(Hit(Document(hit, "", "")) for hit in hits),
        )
        for index, (kind, text, *hits) in enumerate(steps)
    )
    asked = question(World.load(village), identity, seed=0, paraphrases=3)
    answer = next((step.text for step in written if step.kind == "answer"), "")
    return verdicts(village, Episode(asked, (), steps=written, answer=answer))


def verdicts(village: Path, episode: Episode) -> Judgement:
    """What the oracle says of validity; searches and statements have tests of their own (`test_memory`)."""
    return replace(Oracle(village).judge(episode), needless=(), unfounded=())


def test_a_flawless_chain(village: Path) -> None:
    result = judge(village, BORN, DIRECTOR, IS_ILVA, BIRTHPLACE, IS_KELDAN, KELDAN_IT_IS)
    assert result == Judgement((True,) * 5, resolved=True, flawed=False, unresolved=False)


def test_a_wrong_answer_is_neither_flawed_nor_unresolved(village: Path) -> None:
    result = judge(village, BORN, DIRECTOR, IS_ILVA, BIRTHPLACE, IS_KELDAN, ("answer", "Brimby"))
    assert result == Judgement((True, True, True, True, False), resolved=True, flawed=False, unresolved=False)


def test_a_right_answer_from_memory_is_unresolved(village: Path) -> None:
    result = judge(village, BORN, KELDAN_IT_IS)
    assert result == Judgement((False,), resolved=False, flawed=True, unresolved=True)
    result = judge(village, BORN, DIRECTOR, IS_ILVA, ("answer", "keldan."))
    assert result == Judgement((True, True, False), resolved=False, flawed=True, unresolved=True)


def test_an_idle_query_makes_a_right_answer_flawed_but_not_unresolved(village: Path) -> None:
    idle = ("query", "Who is the mayor of Keldan?", KELDAN)
    oren = ("subanswer", "Oren Vask")
    result = judge(village, BORN, DIRECTOR, IS_ILVA, idle, oren, BIRTHPLACE, IS_KELDAN, KELDAN_IT_IS)
    assert result.valid == (True, True, False, True, True, True, True)  # what it says of Keldan is true
    assert (result.resolved, result.flawed, result.unresolved) == (True, True, False)


def test_the_passage_must_be_among_the_hits_of_that_query(village: Path) -> None:
    nothing = ("query", DIRECTOR[1])
    result = judge(village, BORN, nothing, IS_ILVA, BIRTHPLACE, IS_KELDAN, KELDAN_IT_IS)
    assert result.valid == (False, False, False, True, False)
    assert result.unresolved
    third = ("query", DIRECTOR[1], KELDAN, BRIMBY, FILM)
    assert judge(village, BORN, third, IS_ILVA).valid == (True, True)


def test_the_second_hop_does_not_come_before_the_first(village: Path) -> None:
    result = judge(village, BORN, BIRTHPLACE, IS_KELDAN, DIRECTOR, IS_ILVA, KELDAN_IT_IS)
    assert result.valid == (False, True, True, True, False)
    assert not result.resolved


def test_asking_for_a_settled_hop_again_is_invalid(village: Path) -> None:
    result = judge(village, BORN, DIRECTOR, IS_ILVA, DIRECTOR, IS_ILVA, BIRTHPLACE, IS_KELDAN, KELDAN_IT_IS)
    assert result.valid == (True, True, False, True, True, True, True)
    assert result.resolved


def test_asking_twice_before_answering_is_invalid_unless_the_passage_was_missing(village: Path) -> None:
    assert judge(village, BORN, DIRECTOR, DIRECTOR, IS_ILVA).valid == (True, False, True)
    missed = ("query", DIRECTOR[1], BRIMBY)
    assert judge(village, BORN, missed, DIRECTOR, IS_ILVA).valid == (False, True, True)
    wrong = ("subanswer", "Oren Vask")
    assert judge(village, BORN, DIRECTOR, wrong, DIRECTOR, IS_ILVA).valid == (True, False, True, True)


def test_a_query_may_say_what_is_known_but_not_ask_for_what_is_to_come(village: Path) -> None:
    whole = ("query", "Where was the director of The Silent Orchard born?", FILM)
    assert judge(village, BORN, whole, IS_ILVA).valid == (False, True)
    reminder = ("query", "Where was the architect Ilva Tarrow, who directed The Silent Orchard, born?", ARCHITECT)
    assert judge(village, BORN, DIRECTOR, IS_ILVA, reminder, IS_KELDAN).valid == (True, True, True, True)
    aside = ("query", "Who directed and who produced The Silent Orchard?", FILM)
    assert judge(village, BORN, aside, IS_ILVA).valid == (False, True)


def test_a_query_that_hints_at_everything_is_invalid_whatever_is_made_of_it(village: Path) -> None:
    hints = "city where from company organisation firm state runs governs head made wrote written started"
    film = ("query", f"The Silent Orchard {hints}", FILM)
    ilva = ("query", f"Ilva Tarrow (architect) {hints}", ARCHITECT)
    assert judge(village, BORN, film, IS_ILVA, ilva, IS_KELDAN).valid == (False, True, False, True)
    clear = ("query", "Where is Ilva Tarrow (architect) from?", ARCHITECT)
    assert judge(village, BORN, DIRECTOR, IS_ILVA, clear, IS_KELDAN).valid == (True, True, True, True)


@pytest.mark.parametrize(
    ("query", "valid"),
    [
        ("Who directed The Silent Orchard, Mallow Foundry, Keldan and Brimby?", False),
        ("Did Mara Lune direct The Silent Orchard?", False),
        ("Who directed The Silent Orchard, Ilva Tarrow?", False),
        ("Who directed the film The Silent Orchard?", True),
    ],
)
def test_a_query_names_only_who_is_known(village: Path, query: str, valid: bool) -> None:
    assert judge(village, BORN, ("query", query, FILM)).valid == (valid,)


@pytest.mark.parametrize(
    ("identity", "query", "passage"),
    [
        ("w-1hop-000004-birthplace", "Where was the director Mara Lune born?", PILOT),
        ("w-1hop-000040-leader", "Who leads the country of Veldia?", VELDIA),
        ("w-1hop-000030-founder", "Who founded the studio Mallow Foundry?", FOUNDRY),
    ],
)
def test_a_query_may_say_what_an_entity_is(village: Path, identity: str, query: str, passage: str) -> None:
    assert judge(village, identity, ("query", query, passage)).valid == (True,)


def test_a_true_sub_answer_settles_its_hop_whatever_the_query_was_worth(village: Path) -> None:
    whole = ("query", "Where was the director of The Silent Orchard born?", FILM)
    result = judge(village, BORN, whole, IS_ILVA, BIRTHPLACE, IS_KELDAN, KELDAN_IT_IS)
    assert (result.resolved, result.flawed, result.unresolved) == (True, True, False)


def test_a_sub_answer_may_leave_the_bracket_out_but_a_query_may_not(village: Path) -> None:
    bare = ("query", "Where was Ilva Tarrow born?", ARCHITECT)
    result = judge(village, BORN, DIRECTOR, ("subanswer", "ilva tarrow"), bare, IS_KELDAN)
    assert result.valid == (True, True, False, False)


def test_a_sub_answer_is_said_once(village: Path) -> None:
    assert judge(village, BORN, DIRECTOR, *[IS_ILVA] * 4).valid == (True, True, False, False, False)
    two = ("query", "What are the birthplace and the employer of Ilva Tarrow (architect)?", ARCHITECT)
    steps = (two, IS_KELDAN, ("subanswer", "Mallow Foundry"), IS_KELDAN)
    assert judge(village, "w-1hop-000001-birthplace", *steps).valid == (False, True, True, False)


@pytest.mark.parametrize("text", ["Ilva Tarrow (painter)", "Ilva", "", "Ilva Tarrow architect directed it", "unknown"])
def test_a_false_sub_answer_is_invalid(village: Path, text: str) -> None:
    assert judge(village, BORN, DIRECTOR, ("subanswer", text)).valid == (True, False)


def test_bad_format_and_unknown_kinds_are_invalid_steps(village: Path) -> None:
    result = judge(village, BORN, DIRECTOR, IS_ILVA, BIRTHPLACE, IS_KELDAN, KELDAN_IT_IS, malformed=0)
    assert result == Judgement((False, True, True, True, True), resolved=True, flawed=True, unresolved=False)
    assert judge(village, BORN, ("invalid", ""), ("think", DIRECTOR[1], FILM)).valid == (False, False)


def test_an_empty_answer_is_never_right(village: Path) -> None:
    assert judge(village, BORN, ("answer", "")) == Judgement((False,), False, False, False)
    assert judge(village, BORN) == Judgement((), False, False, False)


def test_the_sides_of_a_comparison_come_in_either_order(village: Path) -> None:
    compare = "w-compare-000010-000011-country"
    keldan, brimby = ("query", "In which country is Keldan?", KELDAN), ("query", "Where is Brimby?", BRIMBY)
    veldia, yes = ("subanswer", "Veldia"), ("answer", "yes")
    flawless = Judgement((True,) * 5, resolved=True, flawed=False, unresolved=False)
    assert judge(village, compare, keldan, veldia, brimby, veldia, yes) == flawless
    assert judge(village, compare, brimby, veldia, keldan, veldia, yes) == flawless
    assert judge(village, compare, keldan, veldia, keldan, veldia, yes).valid == (True, True, False, True, False)
    assert judge(village, compare, yes).unresolved
    assert judge(village, compare, keldan, brimby, keldan, brimby).valid == (True, True, False, False)
    assert judge(village, compare, keldan, brimby, veldia, keldan, veldia, yes).valid == (True,) * 6


def test_a_comparison_is_not_looked_up_at_once(village: Path) -> None:
    both = ("query", "Are Keldan and Brimby in the same country?", KELDAN, BRIMBY)
    assert judge(village, "w-compare-000010-000011-country", both).valid == (False,)


def test_a_question_of_another_world_is_refused(village: Path) -> None:
    asked = question(World.load(village), BORN, seed=0, paraphrases=3)
    foreign = Episode(type(asked)("w-1hop-777777-mayor", asked.text, asked.answers), ())
    with pytest.raises(DataError, match="w-1hop-777777-mayor is not of this world"):
        Oracle(village).judge(foreign)


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

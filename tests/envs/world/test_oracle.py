from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import DataError
from envs.types import Document, Episode, Hit, Step
from envs.world.facts import World
from envs.world.oracle import Judgement, Oracle
from envs.world.questions import question

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
    asked, made = question(World.load(village), identity, seed=0, paraphrases=3), written(*steps, malformed=malformed)
    answer = next((step.text for step in made if step.kind == "answer"), "")
    return verdicts(village, Episode(asked, (), steps=made, answer=answer))


def written(*steps: tuple[str, ...], malformed: int | None = None) -> tuple[Step, ...]:
    return tuple(
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


def verdicts(village: Path, episode: Episode) -> Judgement:
    """What the oracle says of validity; searches and statements have tests of their own (`test_memory`)."""
    return replace(Oracle(village).judge(episode), needless=(), unfounded=(), settled=(), open=None)


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


def test_a_hop_is_settled_once_by_the_step_that_first_establishes_it(village: Path) -> None:
    idle, oren = ("query", "Who is the mayor of Keldan?", KELDAN), ("subanswer", "Oren Vask")
    asked = question(World.load(village), BORN, seed=0, paraphrases=3)

    def settled(*steps: tuple[str, ...]) -> tuple[tuple[int | None, ...], int | None]:
        judged = Oracle(village).judge(Episode(asked, (), steps=written(*steps)))
        return judged.settled, judged.open

    assert settled(DIRECTOR, IS_ILVA, idle, oren, BIRTHPLACE, IS_KELDAN, KELDAN_IT_IS) == ((0, 1, 0, 0, 0, 1, 0), 0)
    assert settled(DIRECTOR, IS_ILVA, DIRECTOR, IS_ILVA, KELDAN_IT_IS) == ((0, 1, 0, 0, 0), 1)
    assert settled(DIRECTOR, ("subanswer", "Mara Lune")) == ((0, 0), 2)
    assert settled() == ((), 2)


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

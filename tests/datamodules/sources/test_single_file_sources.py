"""Bamboogle, PopQA, NQ and TriviaQA: questions without passages of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import DataError
from datamodules.sources.bamboogle import Bamboogle
from datamodules.sources.nq import NQ
from datamodules.sources.popqa import PopQA
from datamodules.sources.triviaqa import TriviaQA
from envs.types import Gold, GoldStep, Question

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_bamboogle_sheet_accepts_both_answers() -> None:
    assert list(Bamboogle(FIXTURES / "bamboogle.csv")) == [
        Question(
            "bamboogle-1",
            "Who led Velmark in the year that Tarn was founded?",
            ("Olaf Birk, the elder",),
            Gold(2, "compositional"),
        ),
        Question(
            "bamboogle-2",
            "Who is the mother of the director of The Reed?",
            ("Ann Birk", "Anna Birk"),
            Gold(2, "compositional"),
        ),
    ]


def test_bamboogle_without_header_loses_no_question() -> None:
    questions = list(Bamboogle(FIXTURES / "bamboogle_no_header.csv"))
    assert [question.answers for question in questions] == [("Olaf Birk, the elder",), ("Ann Birk",)]
    assert list(Bamboogle(hub=str(FIXTURES / "hub/bamboogle"), split="test")) == questions


def test_bamboogle_decomposed_ends_in_the_answer_and_accepts_no_other() -> None:
    question = next(iter(Bamboogle(FIXTURES / "bamboogle_decomposed.json")))
    assert question.answers == ("Olaf Birk, the elder",)
    assert question.gold == Gold(
        2,
        "compositional",
        (
            GoldStep("In which year was Tarn founded?", "1411"),
            GoldStep("Who led Velmark in 1411?", "Olaf Birk, the elder"),
        ),
    )


def test_a_bamboogle_line_without_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    path.write_text("Question,,,,Answer\nWho?,,,,\n")
    with pytest.raises(DataError, match=r"sheet\.csv:2: question 'bamboogle-1' has no answer"):
        list(Bamboogle(path))


def test_popqa_reads_the_list_inside_the_cell() -> None:
    questions = list(PopQA(FIXTURES / "popqa.tsv"))
    assert questions[0] == Question(
        "71",
        "What is Juno Pell's occupation?",
        ("mayor", "town mayor"),
        Gold(1, "occupation", titles=("Juno Pell (mayor)",)),
    )
    assert list(PopQA(hub=str(FIXTURES / "hub/popqa"), split="test")) == questions


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1\tWho?\t[oops", r"popqa\.tsv:2: possible_answers: .*not valid JSON"),
        ("1\tWho?", r"popqa\.tsv:2: 2 cells where the header has 3"),
        ("1\tWho?\t[]", r"popqa\.tsv:2: question '1' has no answer"),
        ('1\tWho?\t"[', r"popqa\.tsv:2: unexpected end of data"),
    ],
)
def test_a_damaged_popqa_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "popqa.tsv"
    path.write_text(f"id\tquestion\tpossible_answers\n{row}\n")
    with pytest.raises(DataError, match=message):
        list(PopQA(path))


def test_nq_counts_its_ids() -> None:
    questions = list(NQ(FIXTURES / "nq.jsonl"))
    assert questions[0] == Question("nq-1", "when was the bridge of tarn built", ("14 May 1702", "1702"), Gold(1))
    assert questions[1].id == "nq-2"
    assert list(NQ(hub=str(FIXTURES / "hub/nq"), split="validation")) == questions


def test_triviaqa_accepts_every_name_of_the_answer() -> None:
    questions = list(TriviaQA(FIXTURES / "triviaqa.json"))
    names = ("Mira Sol", "Sol, Mira", "mira sol", "sol mira", "M. Sol")
    assert questions[0] == Question("tc_1", "Who wrote the hymn of Velmark?", names, Gold(1))
    assert (questions[1].id, questions[1].answers) == ("tc_2", ("1702",))


def test_triviaqa_hub_columns_lack_only_the_human_answers() -> None:
    (question,) = TriviaQA(hub=str(FIXTURES / "hub/triviaqa"), split="validation")
    assert question.answers == ("Mira Sol", "Sol, Mira", "mira sol", "sol mira")


@pytest.mark.parametrize("answer", ["", ', "Answer": null', ', "Answer": {"Value": "<unk>", "Aliases": []}'])
def test_triviaqa_test_sets_have_no_answers_and_are_refused(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "test.json"
    path.write_text('{"Data": [{"QuestionId": "tb_1", "Question": "Who?"' + answer + "}]}")
    with pytest.raises(DataError, match=r"test\.json: item 1: question 'tb_1' has no answer"):
        list(TriviaQA(path))

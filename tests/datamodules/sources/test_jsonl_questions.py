from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import DataError
from datamodules.records import question_to_row, write_rows
from datamodules.sources.jsonl import JSONLQuestions
from envs.types import Gold, GoldStep, Question

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_reads_every_usual_spelling() -> None:
    questions = list(JSONLQuestions(FIXTURES / "questions.jsonl"))
    assert questions == [
        Question(
            "q1",
            "Who is the mayor of the town where The Reed was filmed?",
            ("Juno Pell", "J. Pell"),
            Gold(
                2,
                "2hop",
                (
                    GoldStep("The Reed >> filming location", "Tarn", ("p-2",)),
                    GoldStep("Who is the mayor of #1 ?", "Juno Pell", ("p-9",)),
                ),
                ("p-2", "p-1"),
                ("The Reed", "Tarn"),
            ),
        ),
        Question("q2", "when was the bridge of tarn built", ("1702",), Gold(1)),
        Question("q3", "A record  of the suite, as it is ", ("yes",), Gold(1, documents=("p-3",))),
        Question("q4", "A row of FlashRAG's", ("one", "two"), None),
        Question("jsonl-5", "A row without an id", ("fine",), None),
    ]


def test_split_keeps_its_rows() -> None:
    source = JSONLQuestions(FIXTURES / "questions.jsonl", split="train")
    assert [question.id for question in source] == ["q2", "q3"]


def test_a_split_that_no_row_has_is_an_error_that_shows_the_others() -> None:
    with pytest.raises(DataError, match=r"no usable question \(skipped: 1 in split validation, 2 in split train"):
        list(JSONLQuestions(FIXTURES / "questions.jsonl", split="dev"))


def test_own_records_come_back_as_they_were(tmp_path: Path) -> None:
    questions = list(JSONLQuestions(FIXTURES / "questions.jsonl"))
    write_rows(tmp_path / "own.jsonl", (question_to_row(question, split="rl") for question in questions))
    assert list(JSONLQuestions(tmp_path / "own.jsonl", split="rl")) == questions


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.jsonl"
    path.write_text('{"schema": "question/2", "id": "a", "text": "q", "answers": ["x"]}\n')
    with pytest.raises(DataError, match=r"later\.jsonl:1: schema: .*question/1"):
        list(JSONLQuestions(path))

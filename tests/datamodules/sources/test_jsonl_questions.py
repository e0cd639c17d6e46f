from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    "row",
    [
        {"id": "1", "question": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"]},
        {"id": 1, "question": "Who wrote Emma?", "golden_answers": ["Jane Austen", "Austen"], "metadata": {}},
        {"_id": "1", "query": "Who wrote Emma?", "answer": ["Jane Austen", "Austen"]},
        {"id": "1", "text": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"]},
        {"id": "1", "text": "Emma is a novel.", "question": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"]},
        {"id": "1", "text": "Emma is a novel.", "query": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"]},
        {"id": "1", "text": "Who wrote Emma?", "question": None, "answers": ["Jane Austen", "Austen"]},
        {"id": "1", "question": "Who wrote Emma?", "answers": [], "answer": ["Jane Austen", "Austen"]},
        {"id": "1", "question": "Who wrote Emma?", "answers": None, "golden_answers": ["Jane Austen", "Austen"]},
        {"id": "1", "question": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"], "supporting_ids": None},
    ],
)
def test_one_question_is_the_same_in_every_published_shape(tmp_path: Path, row: dict[str, object]) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row).encode() + b"\r\n\r\n")
    assert list(JSONLQuestions(path)) == [Question("1", "Who wrote Emma?", ("Jane Austen", "Austen"))]


def test_one_answer_may_stand_without_a_list(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "a", "answer": "x"}\n{"question": "b", "answer": 1702}\n')
    assert [question.answers for question in JSONLQuestions(path)] == [("x",), ("1702",)]


def test_a_hop_finds_its_passage_by_title_in_every_unicode_form(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    hop = {"question": "a", "answer": "x", "title": '"Zoe\u0308"'}
    row = {"question": "q", "answer": "x", "supporting_titles": ["Zo\u00eb"], "supporting_ids": ["z"]}
    path.write_text(json.dumps(row | {"decomposition": [hop]}) + "\n")
    [question] = JSONLQuestions(path)
    assert question.gold is not None
    assert question.gold.steps == (GoldStep("a", "x", ("z",)),)


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

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from common.errors import ConfigError, DataError
from datamodules.records import question_to_row, write_rows
from datamodules.sources.rows import Rows
from envs.types import Document, Gold, GoldStep, Question

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_reads_every_usual_spelling() -> None:
    questions = list(Rows(FIXTURES / "questions.jsonl"))
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
        Question("row-5", "A row without an id", ("fine",), None),
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
    assert list(Rows(path)) == [Question("1", "Who wrote Emma?", ("Jane Austen", "Austen"))]


def test_one_answer_may_stand_without_a_list(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "a", "answer": "x"}\n{"question": "b", "answer": 1702}\n')
    assert [question.answers for question in Rows(path)] == [("x",), ("1702",)]


def test_a_hop_finds_its_passage_by_title_in_every_unicode_form(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    hop = {"question": "a", "answer": "x", "title": '"Zoe\u0308"'}
    row = {"question": "q", "answer": "x", "supporting_titles": ["Zo\u00eb"], "supporting_ids": ["z"]}
    path.write_text(json.dumps(row | {"decomposition": [hop]}) + "\n")
    [question] = Rows(path)
    assert question.gold is not None
    assert question.gold.steps == (GoldStep("a", "x", ("z",)),)


def test_split_keeps_its_rows() -> None:
    source = Rows(FIXTURES / "questions.jsonl", split="train")
    assert [question.id for question in source] == ["q2", "q3"]


def test_a_split_that_no_row_has_is_an_error_that_shows_the_others() -> None:
    with pytest.raises(DataError, match=r"no usable question \(skipped: 1 in split validation, 2 in split train"):
        list(Rows(FIXTURES / "questions.jsonl", split="dev"))


def test_own_records_come_back_as_they_were(tmp_path: Path) -> None:
    questions = list(Rows(FIXTURES / "questions.jsonl"))
    write_rows(tmp_path / "own.jsonl", (question_to_row(question, split="rl") for question in questions))
    assert list(Rows(tmp_path / "own.jsonl", split="rl")) == questions


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.jsonl"
    path.write_text('{"schema": "question/2", "id": "a", "text": "q", "answers": ["x"]}\n')
    with pytest.raises(DataError, match=r"later\.jsonl:1: schema: .*question/1"):
        list(Rows(path))


STEPS = [{"question": "Who?", "answer": "Ada", "title": "Zebra"}]
OWN: list[dict[str, Any]] = [
    {"nr": "007", "Frage": "Wer?", "Antwort": ["Ada", "A."], "Titel": ["Zebra"], "Schritte": STEPS, "teil": "train"},
    {
        "nr": "8",
        "Frage": 'Wo, "wann"?\nZeile',
        "Antwort": ["Oslo"],
        "Titel": ["Oslo"],
        "Schritte": STEPS,
        "teil": "test",
    },
]
COLUMNS = {
    "id": "nr",
    "question": "Frage",
    "answers": "Antwort",
    "titles": "Titel",
    "steps": "Schritte",
    "split": "teil",
}
GOLD = [Gold(1, steps=(GoldStep("Who?", "Ada"),), titles=(title,)) for title in ("Zebra", "Oslo")]
READ = [
    Question("007", "Wer?", ("Ada", "A."), GOLD[0]),
    Question("8", 'Wo, "wann"?\nZeile', ("Oslo",), GOLD[1]),
]


def json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in OWN))


def table(path: Path, delimiter: str) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, OWN[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in OWN)


WRITERS: dict[str, Callable[[Path], object]] = {
    "own.jsonl": json_lines,
    "own.json": lambda path: path.write_text(json.dumps(OWN, indent=1)),
    "own.csv": lambda path: table(path, ","),
    "own.tsv": lambda path: table(path, "\t"),
    "own.parquet": lambda path: parquet.write_table(pa.Table.from_pylist(OWN), path),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_rows_are_the_same_in_every_kind_of_file(tmp_path: Path, name: str, packed: bool) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    if packed:
        path = path.with_name(f"{name}.gz")
        path.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert list(Rows(path, columns=COLUMNS)) == READ
    assert list(Rows(path, columns=COLUMNS, split="test")) == READ[1:]


def test_rows_are_the_same_in_folders_of_datasets_and_on_the_hub(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    parts = {row["teil"]: Dataset.from_list([row]) for row in OWN}
    Dataset.from_list(OWN).save_to_disk(str(tmp_path / "one"))
    DatasetDict(parts).save_to_disk(str(tmp_path / "parts"))
    (tmp_path / "hub").mkdir()
    parts["test"].to_parquet(str(tmp_path / "hub" / "test.parquet"))
    assert list(Rows(tmp_path / "one", columns=COLUMNS)) == READ
    columns = {field: column for field, column in COLUMNS.items() if field != "split"}
    assert list(Rows(tmp_path / "parts", columns=columns, split="test")) == READ[1:]
    assert list(Rows(hub=str(tmp_path / "hub"), columns=columns, split="test")) == READ[1:]
    with pytest.raises(DataError, match=r"parts: no split 'dev': set split to one of train, test"):
        list(Rows(tmp_path / "parts", split="dev"))


@pytest.mark.parametrize(
    ("answer", "read"),
    [("1702", ("1702",)), ("007", ("007",)), ('["a", "b"]', ("a", "b")), ("[sic]", ("[sic]",)), ("a;b", ("a;b",))],
)
def test_a_cell_is_text_or_a_json_list(tmp_path: Path, answer: str, read: tuple[str, ...]) -> None:
    path = tmp_path / "own.tsv"
    path.write_text(f"question\tanswer\nq\t{answer}\n")
    [question] = Rows(path)
    assert (question.id, question.answers) == ("row-1", read)


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("Frage,Antwort\nq,a\n", {}, r"own\.csv:2: no question: set columns; it has Frage, Antwort"),
        ("Frage,Antwort\nq,a\n", {"question": "Farge"}, r"own\.csv:2: no column 'Farge'; it has Frage, Antwort"),
        ("Frage,Antwort\nq,a\n", {"question": "Frage", "answers": "Antwort", "steps": "Weg"},
         r"own\.csv: no row has a column 'Weg' \(columns: steps\)"),
        ("Frage,Antwort\nq,a\nr,\n", {"question": "Frage", "answers": "Antwort"},
         r"own\.csv:3: question 'row-2' has no answer in column 'Antwort'"),
        ("Frage,Antwort\n ,a\n", {"question": "Frage", "answers": "Antwort"},
         r"own\.csv:2: question 'row-1' has no text in column 'Frage'"),
        ("Frage,Antwort\nq,\"[[1], 2]\"\n", {"question": "Frage", "answers": "Antwort"},
         r"own\.csv:2: Antwort\.0: Input should be a valid string"),
        ("nr,Frage,Antwort\n1,q,a\n1,r,b\n", {"id": "nr", "question": "Frage", "answers": "Antwort"},
         r"own\.csv:3: duplicate question id '1'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_row_and_column(
    tmp_path: Path, content: str, columns: dict[str, str], message: str
) -> None:
    path = tmp_path / "own.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        list(Rows(path, columns=columns))
    assert "\n" not in str(caught.value)


def test_columns_name_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="columns: no 'frage'; it may name question, answers, id, titles"):
        Rows(tmp_path / "own.csv", columns={"frage": "Frage"})


def test_passages_come_from_the_columns_that_hold_them(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("Name,Inhalt\nZebra,A bicycle.\nOslo,A city.\n")
    source = Rows(path, columns={"title": "Name", "text": "Inhalt"})
    assert list(source.documents()) == [Document("row-1", "Zebra", "A bicycle."), Document("row-2", "Oslo", "A city.")]
    assert list(Rows(path).documents()) == []
    path.write_text("nr,Inhalt\nx,a\nx,b\n")
    source = Rows(path, columns={"id": "nr", "text": "Inhalt"})
    with pytest.raises(DataError, match=r"own\.csv:3: id 'x' is also that of .*own\.csv:2"):
        list(source.documents())

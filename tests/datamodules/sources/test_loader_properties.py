"""Whatever stands in a file: correct questions, or a DataError in one line. Never a crash, never a blank question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import DataError
from datamodules.sources.bamboogle import Bamboogle
from datamodules.sources.dataset import Dataset
from datamodules.sources.hotpotqa import HotpotQA
from datamodules.sources.musique import MuSiQue
from datamodules.sources.nq import NQ
from datamodules.sources.popqa import PopQA
from datamodules.sources.rows import Rows
from datamodules.sources.triviaqa import TriviaQA
from datamodules.sources.twowiki import TwoWiki
from envs.types import Document, Question

FIXTURES = Path(__file__).parents[2] / "fixtures"
WEIRD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["[", "{}", "&#9999999999;"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def rows_of(name: str) -> list[dict[str, Any]]:
    path = FIXTURES / name
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    content = json.loads(path.read_text())
    return content["Data"] if isinstance(content, dict) else content


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, child in children for place in places(child, (*path, key))]


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = replaced(value[place[0]], place[1:], new)
    return copy


def outcome(source: Dataset[Any]) -> tuple[list[Question], list[Document]] | str:
    try:
        return list(source), list(source.documents())
    except DataError as error:
        return str(error)


def assert_read_or_refused(source: Dataset[Any]) -> None:
    read = outcome(source)
    if isinstance(read, str):
        assert read
        assert "\n" not in read
        return
    questions, documents = read
    assert questions
    assert all(q.id.strip() and q.text.strip() and all(a.strip() for a in q.answers) and q.answers for q in questions)
    assert len({q.id for q in questions}) == len(questions)
    assert len({d.id for d in documents}) == len(documents)
    json.dumps([q.text for q in questions], ensure_ascii=False).encode()  # no lone surrogates


CASES: list[tuple[type[Any], str]] = [
    (HotpotQA, "hotpotqa.json"),
    (HotpotQA, "hub/hotpotqa/validation.jsonl"),
    (TwoWiki, "2wikimultihopqa.json"),
    (TwoWiki, "hub/2wikimultihopqa_columns/validation.jsonl"),
    (MuSiQue, "musique.jsonl"),
    (Bamboogle, "bamboogle_decomposed.json"),
    (PopQA, "hub/popqa/test.jsonl"),
    (NQ, "nq.jsonl"),
    (TriviaQA, "triviaqa.json"),
    (Rows, "questions.jsonl"),
]


@pytest.mark.parametrize(("source", "fixture"), CASES)
@settings(max_examples=60)
@given(data=st.data())
def test_a_row_with_anything_anywhere_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, source: type[Any], fixture: str, data: st.DataObject
) -> None:
    rows = rows_of(fixture)
    damaged = replaced(rows, data.draw(st.sampled_from(places(rows))), data.draw(WEIRD))
    path = tmp_path_factory.getbasetemp() / f"{source.__name__}.json"
    path.write_text(json.dumps(damaged))
    if isinstance(damaged, list) and data.draw(st.booleans()):
        path = path.with_suffix(".jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in damaged))
    assert_read_or_refused(source(path))


@pytest.mark.parametrize(
    ("source", "suffix"), [(NQ, "jsonl"), (HotpotQA, "json"), (TriviaQA, "json"), (Bamboogle, "csv"), (PopQA, "tsv")]
)
@settings(max_examples=100)
@given(content=st.binary(max_size=60) | st.text('[]{}":,\t\r\n\\u0aD<', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, source: type[Any], suffix: str, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / f"bytes.{suffix}"
    path.write_bytes(content)
    assert_read_or_refused(source(path))


@settings(max_examples=100)
@given(texts=st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2))
def test_any_unicode_text_arrives_whole_but_for_white_space(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    question, answer = (f"x{text}x" for text in texts)
    path = tmp_path_factory.getbasetemp() / "unicode.jsonl"
    path.write_text(json.dumps({"question": question, "answer": [answer]}, ensure_ascii=False), newline="\n")
    (read,) = NQ(path)
    assert read.text.split() == question.split()
    assert read.answers[0].split() == answer.split()

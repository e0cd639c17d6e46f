from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataError
from datamodules.records import (
    check_question,
    episode_from_row,
    episode_to_row,
    question_to_row,
    read_rows,
    write_rows,
)
from envs.types import Action, Document, Episode, Gold, GoldStep, Hit, Question, Step, Turn

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NAME = TEXT.map(lambda text: f"x{text}")
IDS = st.lists(st.integers(0, 2**31), max_size=4).map(tuple)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
GOLDS = st.builds(
    Gold,
    hops=st.none() | st.integers(1, 4),
    type=st.none() | TEXT,
    steps=st.lists(st.builds(GoldStep, TEXT, TEXT, st.lists(TEXT, max_size=2).map(tuple)), max_size=2).map(tuple),
    documents=st.lists(TEXT, max_size=2).map(tuple),
    titles=st.lists(TEXT, max_size=2).map(tuple),
)
QUESTIONS = st.builds(
    Question,
    id=NAME,
    text=NAME,
    answers=st.lists(NAME, min_size=1, max_size=3).map(tuple),
    gold=st.none() | GOLDS,
)
HITS = st.lists(
    st.builds(Hit, st.builds(Document, TEXT, TEXT, TEXT), st.none() | FLOATS),
    max_size=2,
).map(tuple)
TURNS = st.builds(
    Turn,
    agent=TEXT,
    opening_ids=IDS,
    action_ids=IDS,
    action_logps=st.lists(FLOATS, max_size=4).map(tuple),
    finish=st.sampled_from(["stop", "eos", "length", "scripted"]),
    uid=TEXT,
    text=TEXT,
    context_ids=st.none() | IDS,
    action=st.builds(Action, TEXT, TEXT),
    hits=HITS,
    observation_ids=IDS,
    trainable=st.booleans(),
)
SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple)
EPISODES = st.builds(
    Episode,
    question=QUESTIONS,
    prompt_ids=IDS,
    turns=st.lists(TURNS, max_size=3),
    status=st.none() | st.sampled_from(["answered", "step_budget", "token_budget", "malformed", "error"]),
    answer=TEXT,
    steps=st.lists(
        st.builds(Step, TEXT, st.booleans(), SPANS, TEXT, st.none() | TEXT, TEXT, HITS, st.booleans()), max_size=2
    ).map(tuple),
    iteration=st.integers(0, 99),
    sample=st.integers(0, 99),
    truncations=st.dictionaries(st.sampled_from(["turn", "total"]), st.integers(1, 9)).map(Counter),
    error=TEXT,
)
QUESTION = Question("q", "Wer?", ("Zoë",), Gold(1, "bridge", (GoldStep("Who?", "Zoë", ("d1",)),), ("d1",), ("T",)))


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    write_rows(folder / "rows.jsonl", rows)
    return folder / "rows.jsonl"


def test_a_question_row_is_these_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, question_to_row(QUESTION, split="dev"))
    assert path.read_text(encoding="utf-8") == (
        '{"schema": "question/1", "id": "q", "text": "Wer?", "answers": ["Zoë"], "gold": {"hops": 1, "type": "bridge",'
        ' "steps": [{"question": "Who?", "answer": "Zoë", "documents": ["d1"]}], "documents": ["d1"], "titles": ["T"]},'
        ' "split": "dev"}\n'
    )


@given(episode=EPISODES)
def test_episodes_come_back_equal_to_the_last_bit(tmp_path_factory: pytest.TempPathFactory, episode: Episode) -> None:
    path = written(tmp_path_factory.mktemp("e"), episode_to_row(episode))
    (row,) = read_rows(path, "episode/1")
    again = episode_from_row(row)
    assert again == episode
    assert type(again.truncations) is Counter
    assert written(path.parent / "again", episode_to_row(again)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema": "question/1"', r"rows\.jsonl:2: not valid JSON"),
        ("[]", r"rows\.jsonl:2: expected a JSON object, got list"),
        ('{"schema": "episode/1"}', r"rows\.jsonl:2: the row's schema is 'episode/1'; 'question/1' is expected here"),
        ('{"schema": "question/2"}', r"rows\.jsonl:2: the row's schema is 'question/2'"),
        ("{}", r"rows\.jsonl:2: the row's schema is None"),
        ('{"id": "\\ud8', r"rows\.jsonl:2: not valid JSON"),
        ("[" * 100_000, r"rows\.jsonl:2: not valid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path, question_to_row(QUESTION))
    path.write_text(path.read_text() + line + "\n")
    rows = read_rows(path, "question/1")
    assert next(rows)["id"] == "q"
    with pytest.raises(DataError, match=message):
        next(rows)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: not UTF-8: byte 0xff at position 9"):
        list(read_rows(tmp_path / "rows.jsonl", None))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jsonl: No such file"):
        list(read_rows(tmp_path / "gone.jsonl", None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": 3}, r"f:1: question\.text: Input should be a valid string"),
        ({"gold": {"steps": [{"question": "a"}]}}, r"f:1: question\.gold\.steps\.0\.answer: Field required"),
    ],
)
def test_a_bad_field_is_named(change: dict[str, Any], message: str) -> None:
    row = episode_to_row(Episode(QUESTION, (1,)))
    with pytest.raises(DataError, match=message):
        episode_from_row(row | {"question": row["question"] | change}, "f:1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ()}, "f:1: question 'q' has no answer"),
        ({"answers": (" ",)}, "f:1: question 'q' has no answer"),
        ({"text": ""}, "f:1: question 'q' has no text"),
        ({"id": ""}, "f:1: a question without id"),
    ],
)
def test_a_question_without_id_text_or_answer_is_an_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_question(replace(QUESTION, **change), "f:1")


def test_a_row_from_before_a_field_with_a_default_is_still_read() -> None:
    row = episode_to_row(Episode(QUESTION, (1,)))
    del row["truncations"], row["error"]
    assert episode_from_row(row) == Episode(QUESTION, (1,))


def test_an_unknown_status_is_no_episode() -> None:
    with pytest.raises(DataError, match="row: status: Input should be 'answered'"):
        episode_from_row(episode_to_row(Episode(QUESTION, (1,))) | {"status": "fine"})


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), "\ud800", object()])
def test_what_json_cannot_hold_leaves_no_file(tmp_path: Path, value: object) -> None:
    with pytest.raises(DataError, match="row 2 cannot be written"):
        written(tmp_path, {"a": 1}, {"a": value})
    assert list(tmp_path.iterdir()) == []


def test_rows_are_written_as_they_come_and_kept_only_when_all_came(tmp_path: Path) -> None:
    def rows():
        yield {"a": 1}
        assert not (tmp_path / "rows.jsonl").exists()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_rows(tmp_path / "rows.jsonl", rows())
    assert list(tmp_path.iterdir()) == []

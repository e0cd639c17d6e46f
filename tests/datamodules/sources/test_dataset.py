"""What all datasets share: choosing, and one clear line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DataError
from datamodules.sources.hotpotqa import HotpotQA
from datamodules.sources.nq import NQ
from datamodules.sources.rows import Rows


def nq_file(folder: Path, count: int) -> Path:
    path = folder / "nq.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": [str(i)]}) + "\n" for i in range(1, count + 1)))
    return path


def texts(source: NQ) -> list[str]:
    return [question.text for question in source]


def test_limit_takes_the_first(tmp_path: Path) -> None:
    assert texts(NQ(nq_file(tmp_path, 9), limit=3)) == ["q1", "q2", "q3"]


def test_sample_is_fixed_by_seed_and_ids_alone(tmp_path: Path) -> None:
    path = nq_file(tmp_path, 30)
    assert texts(NQ(path, sample=4, seed=1)) == ["q14", "q3", "q8", "q28"]
    assert texts(NQ(path, sample=4, seed=2)) != texts(NQ(path, sample=4, seed=1))


def test_a_smaller_sample_is_the_head_of_a_larger_one(tmp_path: Path) -> None:
    path = nq_file(tmp_path, 30)
    everything = texts(NQ(path, sample=99))
    assert texts(NQ(path, sample=7)) == everything[:7]
    assert sorted(everything) == sorted(texts(NQ(path)))


def test_sample_is_taken_from_the_limit(tmp_path: Path) -> None:
    assert sorted(texts(NQ(nq_file(tmp_path, 30), limit=3, sample=3))) == ["q1", "q2", "q3"]


def test_questions_that_no_prediction_can_answer_are_kept_and_named_once(tmp_path: Path, caplog) -> None:
    path = tmp_path / "nq.jsonl"
    answers = [["The"], ["Paris"], ["...", ""], ["a", "A Band"], ["An"]]
    path.write_text("".join(json.dumps({"question": f"q{n}", "answer": a}) + "\n" for n, a in enumerate(answers)))
    source = NQ(path)
    assert texts(source) == texts(source) == ["q0", "q1", "q2", "q3", "q4"]
    assert caplog.messages == [
        f"{path}: 3 questions have no answer but ones that normalise to nothing, such as 'The' of nq-1: "
        "no prediction is right there"
    ]
    caplog.clear()
    assert texts(NQ(path, limit=2)) == ["q0", "q1"]
    assert ["1 questions have no answer" in message for message in caplog.messages] == [True]


def test_ids_of_one_name_are_one_id(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    rows = [{"id": name, "question": "q", "answer": "x"} for name in ("\u00e9", "e\u0301")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"twice\.jsonl:2: duplicate question id"):
        list(Rows(path))


def test_parts_are_disjoint_cuts_that_together_are_everything(tmp_path: Path) -> None:
    path = nq_file(tmp_path, 200)
    cuts = [texts(NQ(path, part=part)) for part in ((0.0, 0.3), (0.3, 0.6), (0.6, 1.0))]
    assert [len(cut) for cut in cuts] == [51, 58, 91]
    assert sorted(text for cut in cuts for text in cut) == sorted(texts(NQ(path)))


def test_questions_of_one_wording_are_in_one_part_whatever_their_order(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    asked = [(f"{copy}{n}", f"{who} is {n}?") for copy, who in enumerate(("Who", "who")) for n in range(50)]
    rows = [json.dumps({"id": identity, "question": text, "answer": "x"}) + "\n" for identity, text in asked]
    parts = []
    for order in (rows, rows[::-1]):
        path.write_text("".join(order))
        halves = (Rows(path, part=part) for part in ((0.0, 0.5), (0.5, 1.0)))
        first, second = ([one.text.lower() for one in half] for half in halves)
        assert len(first) + len(second) == 100
        assert not {*first} & {*second}
        parts.append({*first})
    assert parts[0] == parts[1]


def test_parts_stay_disjoint_whatever_else_is_chosen_in_them(tmp_path: Path) -> None:
    path = nq_file(tmp_path, 200)
    first, rest = texts(NQ(path, part=(0.0, 0.5), sample=40, seed=1)), texts(NQ(path, part=(0.5, 1.0), limit=60))
    assert (len(first), len(rest)) == (40, 60)
    assert not {*first} & {*rest}
    assert texts(NQ(path, part=(0.0, 0.5), limit=3)) == texts(NQ(path, part=(0.0, 0.5)))[:3]


def test_limit_reads_no_further_than_it_must(tmp_path: Path) -> None:
    path = nq_file(tmp_path, 2)
    path.write_text(path.read_text() + "broken\n")
    assert texts(NQ(path, limit=2)) == ["q1", "q2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either path .* or hub"),
        ({"path": "a.json", "hub": "b"}, "either path .* or hub"),
        ({"hub": "b"}, "hub b needs a split"),
        ({"path": "a.json", "split": "train"}, "name, split and revision need hub"),
        ({"path": "a.json", "limit": 0}, "limit: 0 leaves no question"),
        ({"path": "a.json", "part": (0.5, 0.5)}, r"part: \[0.5, 0.5\] must be two bounds in order, within \[0, 1\]"),
        ({"path": "a.json", "part": (0.0, 40.0)}, "part: .* must be two bounds in order"),
        ({"path": "a.json", "sample": -1}, "sample: -1 leaves no question"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NQ(**arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "a", "answer": ["b"]}\n{"question": ', r"nq\.jsonl:2: not valid JSON"),
        ('{"question": "a", "answer": "b"}', r"nq\.jsonl:1: answer: Input should be a valid tuple"),
        ('{"question": "a", "answer": []}', r"nq\.jsonl:1: question 'nq-1' has no answer"),
        ("", r"nq\.jsonl: no usable question"),
        ("\n\n", r"nq\.jsonl: no usable question"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "nq.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        list(NQ(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"_id": "a"}', r"h\.json: expected a JSON file that is a list \(JSON lines are named \.jsonl\)"),
        ("", r"h\.json: expected a JSON file that is a list"),
        ('[{"_id": "a", "question": "q", "answer": "b"},\n {"_id": ]', r"h\.json:2: not valid JSON"),
        ('[{"_id": "a", "question": "q", "answer": "b"}', r"h\.json:1: not valid JSON: expected ','"),
        ("[3]", r"h\.json: item 1: Input should be a valid dictionary"),
        ('[{"_id": "a", "question": "q", "answer": ""}]', r"h\.json: item 1: question 'a' has no answer"),
        ("[]", r"h\.json: no usable question"),
        (
            '[{"_id": "a", "question": "q", "answer": "b"}, {"_id": "a", "question": "q", "answer": "b"}]',
            r"h\.json: item 2: duplicate question id 'a'",
        ),
    ],
)
def test_a_bad_item_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "h.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        list(HotpotQA(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gone.json", "gone.jsonl", "."])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"(gone\.jsonl?: No such file|: Is a directory)"):
        list(HotpotQA(tmp_path / name))

"""The JSON object in a reply: taken where one is meant, never guessed."""

from __future__ import annotations

import json

import pytest

from common.json_replies import json_object

WANTED = {"score": 80}


@pytest.mark.parametrize(
    "reply",
    [
        '{"score": 80}',
        '\ufeff {"score": 80}\n',
        '```json\n{"score": 80}\n```',
        'Here it is:\n```json\n{"score": 80}\n```\nI hope it helps.',
        '<think>It may be {"score": 10}.</think>{"score": 80}',
        '<think>\nWell.\n</think>\n\n```\n{"score": 80}\n```',
        'Sure. <think>{"score": 10}</think>{"score": 80}',
        'It may be {"score": 10}.\n</think>\n{"score": 80}',
        'The step is sound [1], so: {"score": 80}',
        'The score is "high": {"score": 80}.',
        '{"score": 80} is my opinion.',
    ],
)
def test_one_object_is_taken_wherever_it_stands(reply: str) -> None:
    assert json_object(reply) == WANTED


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        ("", "an empty reply"),
        (" \n", "an empty reply"),
        ("80", "expected a JSON object, not int"),
        ('[{"score": 80}]', "expected a JSON object, not list"),
        ('"{}"', "expected a JSON object, not str"),
        ("eighty", "no JSON object"),
        ('<think>It may be {"score": 10}', "the reasoning does not end"),
        ("<think>It may be", "the reasoning does not end"),
        ('Sure. <think>It may be {"score": 10}', "the reasoning does not end"),
        ('Either {"score": 10} or {"score": 80}', "more than one JSON object"),
        ('{"score": 10}{"score": 80}', "more than one JSON object"),
        ('{"score": 10} <think>No.</think> {"score": 80}', "more than one JSON object"),
        ('{"step": {"score": 80}', "Expecting ',' delimiter"),
        ('It is {good} so {"score": 80}', "Expecting property name"),
        ('So: [{"score": 80}, 1', "an object inside another JSON value"),
        ('So: [1, {"score": 80}]', "an object inside another JSON value"),
        ('"a": {"score": 80}}', "an object inside another JSON value"),
        ('{"score": 80,}', "Expecting property name|Illegal trailing comma"),
        ("{'score': 80}", "Expecting property name"),
        ('{"score": 10, "score": 80}', "a duplicate key"),
        ('{"score": NaN}', "NaN is no number of JSON"),
        ('{"score": -Infinity}', "-Infinity is no number of JSON"),
        ('{"score": ' + "9" * 5000 + "}", "4300 digits"),
        ('{"score": "\\ud83d"}', "a lone surrogate"),
        ('{"score": "a' + "\n" + '"}', "control character"),
        ('{"a": ' * 100_000, "nested too deep"),
        ("prose " + '{"a": ' * 100_000, "nested too deep"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_anything_else_is_invalid_with_a_reason(reply: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        json_object(reply)


@pytest.mark.parametrize("around", ["{}", "<think>So </think>{}", "Sure: {}", "</think>{}"])
def test_tags_of_reasoning_inside_the_object_are_text(around: str) -> None:
    wanted = {"text": "<think>a</think> <search>b</search> {c}"}
    assert json_object(around.replace("{}", json.dumps(wanted))) == wanted


def test_a_reply_that_was_cut_is_an_object_only_as_a_whole() -> None:
    assert json_object('{"score": 80}', cut=True) == WANTED
    for reply in ('Perhaps {"score": 10} but', '<think>{"score": 10}', '{"score": 8'):
        with pytest.raises(ValueError, match="the reply breaks off at reply_tokens"):
            json_object(reply, cut=True)

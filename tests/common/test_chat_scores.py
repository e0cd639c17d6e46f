"""Scores of a model: on the scale that was asked for, or none."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from common.chat_client import ChatCall, ChatClient, ChatError
from common.chat_scores import chat_scores
from tests.chat_server import chat_server


def scores(tmp_path: Path, *replies: Any, **settings: Any) -> list[float | None]:
    """The scores of calls that get these replies, in their order."""
    calls = [ChatCall("Score it.", str(number)) for number in range(len(replies))]
    with chat_server(lambda user: replies[int(user)]) as server:
        own = {"retries": 0, "timeout": 5.0, "cache": str(tmp_path / "cache"), "max_failures": 99} | settings
        return chat_scores(ChatClient("m", server.url, **own), calls, label="scores")


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ({"score": 80}, 0.8),
        ({"score": 0}, 0.0),
        ({"score": 100}, 1.0),
        ({"score": 62.5, "reason": "x"}, 0.625),
        ('<think>Well {"score": 3}</think>\n{"score": 80}', 0.8),
        ('My opinion:\n```json\n{"score": 80}\n```', 0.8),
        ({"score": 0.8}, None),
        ({"score": 1}, None),
        ({"score": 1e-9}, None),
        ({"score": "80"}, None),
        ({"score": "80/100"}, None),
        ({"score": True}, None),
        ({"score": [80]}, None),
        ({"score": None}, None),
        ({"score": 2**70}, None),
        ('{"score": 1e999}', None),
        ('{"score": NaN}', None),
        ({"score": 100.5}, None),
        ({"score": -1}, None),
    ],
)
def test_a_score_is_a_number_of_0_to_100(tmp_path: Path, reply: Any, score: float | None) -> None:
    assert scores(tmp_path, reply) == [score]


def test_a_judge_on_a_scale_to_1_ends_the_work_with_its_zeros(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match=r"m at http\S+: scores such as \S+ are on a scale of 0 to 1, but"):
        scores(tmp_path, *({"score": score} for score in (0, 0.8, 0, 1.0, 0, 0.3)))
    mixed = scores(tmp_path / "mixed", *({"score": score} for score in (0, 0.8, 1.0, 0.3, 50)))
    assert mixed == [0.0, None, None, None, 0.5], "one who scores higher slips"


@pytest.mark.parametrize(("best", "said"), [(10, True), (11, False), (0, False)])
def test_scores_that_are_all_at_most_ten_are_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, best: int, said: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        assert scores(tmp_path, *({"score": 0} for _ in range(9)), {"score": best})[-1] == best / 100
    assert ("all 10 scores are at most 10 of 100" in caplog.text) == said

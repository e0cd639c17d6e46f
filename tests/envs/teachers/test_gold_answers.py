"""Answers without a word before them, and the end of the message after them."""

from __future__ import annotations

import pytest

from common.errors import ConfigError
from envs.protocols.direct import Direct
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.teachers.gold_answers import GoldAnswers
from envs.types import Question
from tests.tiny import byte_tokenizer

PROTOCOL = Direct(byte_tokenizer(), retrieve=False, instruction="")  # type: ignore[arg-type] (a loaded one will do)


def test_it_writes_the_first_answer_and_ends_its_message() -> None:
    asked = Question("q", "Where was Ann born?", ("Brimby <|im_end|>", "Brim"))
    [episode] = rollout(RetrievalEnvironment(PROTOCOL), GoldAnswers(PROTOCOL), [asked], seed=0)
    [turn] = episode.turns
    codec = PROTOCOL.codec
    assert turn.action_ids == (*codec.data("Brimby <|im_end|>"), codec.tokenizer.eos_token_id)
    assert (episode.status, episode.answer) == ("answered", "Brimby &lt;|im_end|>")
    assert turn.trainable


def test_a_format_without_answers_is_refused() -> None:
    class Silent(Direct):
        moves = ()

    with pytest.raises(ConfigError, match="GoldAnswers needs the move 'conclude', which Silent cannot write"):
        RetrievalEnvironment(Silent(byte_tokenizer(), retrieve=False)).check(GoldAnswers(PROTOCOL))  # type: ignore[arg-type]

from __future__ import annotations

import pytest

from envs.text import Codec
from envs.types import Move, Turn
from modules.samplers.running_request import StopTags
from systems.baselines.sentences import SENTENCE_ENDS, announced, as_sentence, first_sentence, sentence_end
from tests.tiny import byte_tokenizer

CODEC = Codec(byte_tokenizer())


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Ada wrote it. She was born", "Ada wrote it."),
        (" \nAda wrote it. She", " \nAda wrote it."),
        ("by J. K. Rowling in 1997. It", "by J. K. Rowling in 1997."),
        ("It costs 3.5 dollars! Yes", "It costs 3.5 dollars!"),
        ("one line\nanother", "one line\n"),
        ("at the end of the text.", "at the end of the text."),
        ("no end", "no end"),
        ("\n \n", "\n \n"),
        ("", ""),
    ],
)
def test_where_the_first_sentence_ends(text: str, first: str) -> None:
    assert text[: sentence_end(text)] == first


@pytest.mark.parametrize("text", ["Ada wrote it. She was born. Then", "by J. K. Rowling in 1997. It", "one line\nmore"])
def test_a_sampler_stops_just_past_it(text: str) -> None:
    ids = list(CODEC.control(text))
    texts = [CODEC.decode([token]) for token in range(len(CODEC.tokenizer))]
    stops = StopTags(SENTENCE_ENDS, texts, CODEC.decode)
    stopped = next(count for count in range(1, len(ids) + 1) if stops.ended(ids[:count]))
    assert stopped - sentence_end(text) in (0, 1)


def turn(text: str, finish: str = "stop") -> Turn:
    ids = CODEC.control(text)
    return Turn("policy", (), ids, (0.0,) * len(ids), finish, "u", text=text)  # type: ignore[arg-type]


def test_a_turns_first_sentence_in_tokens_and_text() -> None:
    assert first_sentence(CODEC, turn(" Ada wrote it. S")) == (14, "Ada wrote it.")
    assert first_sentence(CODEC, turn("Ada<|im_end|>", "eos")) == (3, "Ada")
    assert first_sentence(CODEC, turn("Ada<|im_end|>more")) == (3, "Ada")
    assert first_sentence(CODEC, turn("<|im_end|>", "eos")) == (0, "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So the answer is: Ada Lovelace.", "Ada Lovelace"),
        ("She did,  so the\nanswer is Ada", "Ada"),
        ("So the answer is: J. K. Rowling", "J. K. Rowling"),
        ("So the answer is: ", ""),
        ("Also the answer is: Ada", ""),
        ("So the answer isn't known.", ""),
        ("The answer", ""),
    ],
)
def test_the_announced_answer(text: str, answer: str) -> None:
    assert announced(text) == answer


def test_another_marker() -> None:
    assert announced("Therefore: Ada.", "Therefore:") == "Ada"
    assert announced("So the answer is: Ada.", "Therefore:") == ""


def test_a_teachers_sentence_is_its_thought_and_does_not_end_the_message() -> None:
    assert as_sentence(CODEC, Move("recall", "Ada", "Ada wrote it.")) == "Ada wrote it."
    assert as_sentence(CODEC, Move("recall", "Ada wrote <answer> it.")) == "Ada wrote &lt;answer> it."
    assert as_sentence(CODEC, Move("conclude", "Ada", "Now I know.")) == "So the answer is: Ada."

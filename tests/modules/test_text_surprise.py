"""Surprise of texts: words and their tokens, pieces of long texts, the token that begins a text, what is counted."""

from __future__ import annotations

import pytest
import torch

from common.errors import ConfigError
from modules.samplers.in_process import InProcessSampler
from modules.text_surprise import TextSurprise, Words
from tests.tiny import byte_tokenizer, tiny_policy

POLICY = tiny_policy(byte_tokenizer(merges=[("o", "n")]), scale=3.0)
START = POLICY.tokenizer.eos_token_id


def surprise(window: int = 1024) -> TextSurprise:
    return TextSurprise(InProcessSampler(POLICY), window=window)


def own(*ids: int) -> list[float]:
    """Of all tokens but the first, by the whole model."""
    with torch.no_grad():
        logps = torch.log_softmax(POLICY.model(torch.tensor([ids])).logits[0].float(), dim=-1)
    return [-float(logps[place, token]) for place, token in enumerate(ids[1:])]


def test_a_token_belongs_to_the_word_that_it_ends_in() -> None:
    read = surprise().read("on  <answer> é")
    assert read.words == ["on", "<answer>", "é"]
    assert read.word_of == [0, *[1] * 10, *[2] * 3], "one token; two blanks and eight letters; a blank and two bytes"
    assert POLICY.tokenizer.decode(read.ids) == "on  <answer> é"
    assert not {*read.ids} & {*POLICY.tokenizer.all_special_ids}, "text, not a tag"
    assert surprise().read(" ") == Words([], (), [])


def test_the_tokens_of_a_word_are_averaged_or_added_up() -> None:
    words = Words(["a", "b", "c"], (1, 2, 3), [0, 0, 2])
    assert words.of_words([3.0, 1.0, 5.0]) == [2.0, 0.0, 5.0]
    assert words.of_words([3.0, 1.0, 5.0], mean=False) == [4.0, 0.0, 5.0]


def test_a_text_is_scored_after_its_prefix_and_the_token_that_begins_texts() -> None:
    one = surprise()
    scored = one.of([((), (5, 6, 7)), ((8, 9), (5, 6)), ((), ())])
    expected = own(START, 5, 6, 7), own(START, 8, 9, 5, 6)[2:], []
    assert [pytest.approx(each, abs=1e-5) for each in expected] == scored
    assert one.counts == {"cost/read_tokens/scorer": 7}, "the last token of each is not read"


def test_a_long_text_is_read_in_pieces_after_what_fits_of_the_text_before() -> None:
    [scored] = surprise(window=4).of([((5, 6, 7), (8, 9, 10))])
    first, last = own(START, 7, 8, 9)[1:], own(START, 8, 9, 10)[2:]
    assert scored == pytest.approx([*first, *last], abs=1e-5)


def test_a_window_needs_room() -> None:
    with pytest.raises(ConfigError, match="window is 3; it must be at least 4"):
        surprise(window=3)

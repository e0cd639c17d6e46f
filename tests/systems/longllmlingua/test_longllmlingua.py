"""LongLLMLingua: its formulas, what is shown of passages, and the words that an answer gets back."""

from __future__ import annotations

import pytest

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.types import Document, Hit
from modules.samplers.in_process import InProcessSampler
from modules.text_surprise import TextSurprise
from systems.longllmlingua.compressor import (
    LongLLMLingua,
    arranged,
    coarse_order,
    highest,
    keep_ratios,
    target_tokens,
    within_budget,
)
from systems.longllmlingua.recovery import recovered
from tests.tiny import byte_tokenizer, tiny_policy

ADA = "Ada King, Countess of Lovelace, was a mathematician and wrote the first program."
HITS = [
    Hit(Document("a", "Ada", ADA), 3.0),
    Hit(Document("b", "Babbage", "He built the engine."), 2.0),
    Hit(Document("c", "Cat", "It purrs."), 1.0),
]


def test_the_passage_after_which_the_question_surprises_least_comes_first() -> None:
    assert coarse_order([[2, 1, 3], [1, 1, 1.5]]) == [1, 0]
    assert coarse_order([[1.0], [1.0]]) == [0, 1], "the earlier of equal ones"


def test_the_budget_is_exceeded_by_one_passage_at_most() -> None:
    assert target_tokens(0.55, 10 + 20, [970]) == pytest.approx(520)
    assert within_budget([300, 250, 200, 220], 520 + 100) == 3
    assert within_budget([300], 520) == 1
    assert within_budget([300, 250], -1) == 1


def test_the_first_passages_keep_more() -> None:
    assert keep_ratios(4, 0.5, 0.3) == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert keep_ratios(3, 0.9, 0.3) == pytest.approx([1.0, 0.9, 0.6])
    assert keep_ratios(1, 0.5, 0.3) == [0.5]
    assert keep_ratios(2, -0.5, 0.3) == [0.0, 0.0]


def test_passages_are_arranged() -> None:
    assert arranged(range(5), "two_stage") == [0, 2, 4, 3, 1]
    assert arranged([2, 0, 1], "original") == [0, 1, 2]
    assert arranged([2, 0, 1], "sort") == [2, 0, 1]


def test_the_words_that_the_question_explains_best_stay() -> None:
    worth = [own - given for own, given in zip([5, 1, 4, 2, 3], [4.5, 1.2, 1, 2, 2.5], strict=True)]
    assert worth == pytest.approx([0.5, -0.2, 3, 0, 0.5])
    assert highest(worth, 0.4) == [0, 2], "of equal ones the earlier"


def compressor(**settings: object) -> LongLLMLingua:
    scorer = TextSurprise(InProcessSampler(tiny_policy(byte_tokenizer(()), scale=3.0)))
    return LongLLMLingua(scorer, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{}, {"contrast": False}, {"order": "original"}, {"order": "two_stage"}])
def test_what_is_shown_are_words_of_the_passage_in_their_order(settings: dict[str, object]) -> None:
    made = compressor(rate=0.6, budget=0, dynamic=0.1, **settings)
    hits = made.compress("Who wrote the first program?", HITS)
    assert {hit.document.id for hit in hits} == {"a", "b", "c"}
    assert [hit.shown == "" for hit in hits] == sorted(hit.shown == "" for hit in hits), "the others come last"
    for hit in hits:
        words = iter(f"{hit.document.title} {hit.document.text}".split())
        assert hit.shown is not None
        assert all(word in words for word in hit.shown.split())
    assert 0 < len(render_hits(hits)) < len(render_hits(HITS))
    assert made.counts["cost/read_tokens/scorer"] > 0
    assert made.compress("Who wrote the first program?", HITS) == hits


def test_a_passage_may_keep_all_and_another_nothing() -> None:
    first, last = compressor(rate=1.0, dynamic=1.0).compress("", HITS[:2])
    assert (first.shown, last.shown) == (f"{first.document.title} {first.document.text}", "")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Ada Lovelace, in full", "Ada King, Countess of Lovelace, in full"),
        ("program.", "program."),
        ("Babbage", "Babbage"),
        ("", ""),
    ],
)
def test_an_answer_gets_back_what_was_taken_out(answer: str, expected: str) -> None:
    hit = Hit(Document("a", "Mathematics", ADA), shown="Ada Lovelace, wrote program.")
    assert recovered(answer, [hit]) == expected
    assert recovered(f"{answer}  x", []) == f"{answer}  x", "as it is where nothing was compressed"


def test_words_that_lie_far_apart_stay_as_they_are() -> None:
    page = "Ada " + "so " * 11 + "wrote."
    assert recovered("Ada wrote.", [Hit(Document("a", "", page), shown="Ada wrote.")]) == "Ada wrote."


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"rate 0, budget 100, dynamic 0.3, order sort: rate in \(0, 1\]"):
        compressor(rate=0)

"""Episodes as a page shows them: what went wrong, by hand; figures and verdicts of steps, what each agent held."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.report.episodes import (
    NO_STEP,
    Passages,
    first_untrue,
    mistaken,
    mistakes,
    number,
    outcome,
    printable,
    searching,
    shown_episode,
    shown_question,
    verdict,
    worth,
)

FOUND = {name: {"title": f"Title {name}", "text": f"Text {name}."} for name in ("d1", "d2", "d3")}


def step(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "text": "t", "valid": True, "hits": [], "said": f"I {kind}", **more}


def row(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {"id": "q", "question": "Who?", "answers": ["Ann"], "prediction": "Bob", "status": "answered"}
    return told | {"em": 0.0, "f1": 0.25, "steps": list(steps)} | more


def test_a_step_has_its_verdicts_rewards_advantage_and_log_prob_in_this_order() -> None:
    told = step("query", truth=False, rewards={"reward": 0.5, "prm": -1.25}, advantage=1.0, logp=-0.25, valid=False)
    (shown,) = shown_episode(row(told, outcome={}), {}, Passages())["steps"]
    assert shown["chips"] == [
        ("format ✗", "bad", 1.0),
        ("true ✗", "bad", 1.0),
        ("reward +0.50", "good", 0.5),
        ("prm -1.25", "bad", 1.0),
        ("advantage +1.00", "good", 0.5),
        ("log-prob -0.25", "much", 0.5),
    ]


def test_what_is_not_known_is_a_dash() -> None:
    assert [verdict("true", value)[:2] for value in (None, True)] == [("true –", ""), ("true ✓", "good")]
    assert number("prm", None) == number("prm", float("nan")) == ("prm –", "", 1.0)
    assert number("prm", 0.0) == ("prm 0.00", "", 0.0)


def test_only_what_has_a_sign_is_good_or_bad() -> None:
    assert [number("x", value, signed=True)[1] for value in (1, -1, 0)] == ["good", "bad", ""]
    assert [number("x", value)[1] for value in (1, -1, 0)] == ["much", "much", ""]


def test_a_step_of_training_without_rewards_has_dashes_and_one_of_an_evaluation_a_log_prob_alone() -> None:
    rewarded, other = step("query", rewards={"prm": 0.5}, advantage=0.5), step("answer")
    trained = shown_episode(row(rewarded, other, outcome={"reward": 1.0}), {}, Passages())
    assert texts(trained["steps"][1]) == ["format ✓", "true –", "prm –", "advantage –", "log-prob –"]
    outcomes = shown_episode(row(other, outcome={"reward": 1.0}), {}, Passages())
    assert texts(outcomes["steps"][0]) == ["format ✓", "true –", "reward –", "advantage –", "log-prob –"]
    assert texts(shown_episode(row(other), {}, Passages())["steps"][0]) == ["format ✓", "true –", "log-prob –"]


def texts(shown: dict[str, Any]) -> list[str]:
    return [text for text, *_ in shown["chips"]]


def test_of_two_agents_each_step_tells_what_was_held_kept_and_dropped() -> None:
    gold = {"steps": [], "documents": ["d2"], "titles": []}
    steps = [
        step("query", agent="decider", hits=["d1", "d2"]),
        step("keep", agent="selector", hits=["d1", "d2"], kept=["d2"]),
        step("stop", agent="decider"),
    ]
    asked, kept, stopped = shown_episode(row(*steps, gold=gold), FOUND, Passages())["steps"]
    assert (asked["agent"], asked["evidence"], asked["gold"]) == ("decider", "none", 1)
    assert kept["hits"] == [("Title d1", 0, "dropped"), ("Title d2", 1, "gold, kept")]
    assert (kept["evidence"], stopped["evidence"]) == ("", "Title d2")


def test_gold_passages_are_told_by_title_in_a_corpus_with_other_ids() -> None:
    gold = {"steps": [], "documents": ["hotpot-7"], "titles": ["title D1 "]}
    (shown,) = shown_episode(row(step("query", hits=["d1", "d2"]), gold=gold), FOUND, Passages())["steps"]
    assert [marks for *_, marks in shown["hits"]] == ["gold", ""]


def test_a_passage_stands_on_the_page_once() -> None:
    passages = Passages()
    assert [passages.place(name, FOUND) for name in ("d1", "d2", "d1", "unknown")] == [0, 1, 0, None]
    assert passages.rows == [("d1", "Title d1", "Text d1."), ("d2", "Title d2", "Text d2.")]
    assert passages.place("d1", {"d1": {"title": "x", "text": "another world's"}}) == 2, "not the same passage"


def test_the_question_comes_with_its_gold_chain() -> None:
    gold = {"steps": [{"question": "Who?", "answer": "Cyd", "documents": []}], "documents": [], "titles": []}
    shown = shown_question(row(gold=gold, hops=1, answers=["Ann", "A."]))
    assert (shown["gold"], shown["answers"], shown["hops"]) == ([("Who?", "Cyd")], "Ann / A.", 1)
    assert shown_question(row())["gold"] == []


def test_text_is_cut_with_a_note_and_unprintable_signs_are_replaced() -> None:
    assert printable("a" * 100, 4) == "aaaa … (96 more characters)"
    for longer in range(24):
        assert printable("a" * (4 + longer), 4) == "a" * (4 + longer), "the note is as long as what it replaces"
    assert printable("a\x00b\x1b[31m\ud800\ttab\nline") == "a�b�[31m�\ttab\nline"


def ended(**more: Any) -> dict[str, Any]:
    return {"em": 1.0, "status": "answered", "steps": [], **more}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, []),
        ({"flawed": 0.0, "unresolved": 0.0, "recall": 0.5, "valid_steps": 1.0}, []),
        ({"em": 0.0}, ["wrong"]),
        ({"em": 0.0, "recall": 0.5}, ["wrong", "missed"]),
        ({"em": 0.0, "recall": 1.0, "flawed": 0.0}, ["wrong"]),
        ({"flawed": 1.0}, ["flawed"]),
        ({"flawed": 1.0, "unresolved": 1.0}, ["flawed", "unresolved"]),
        ({"valid_steps": 0.75}, ["format"]),
        ({"valid_episodes": 0.0}, ["format"]),
        ({"em": 0.0, "status": "step_budget"}, ["wrong", "cut"]),
        ({"truncations": {"observation": 2}}, ["cut"]),
        ({"truncations": {"observation": 0}}, []),
        ({"em": None, "status": "error"}, ["failed"]),
        ({"em": None}, []),
    ],
)
def test_mistakes_are_read_from_the_row(told: dict[str, Any], expected: list[str]) -> None:
    assert mistaken(ended(**told)) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, {"wrong", "cut", "failed"}),
        ({"em": None}, {"cut", "failed"}),
        ({"recall": 0.0}, {"wrong", "missed", "cut", "failed"}),
        ({"flawed": 0.0, "unresolved": None}, {"wrong", "flawed", "cut", "failed"}),
        ({"valid_steps": 1.0}, {"wrong", "format", "cut", "failed"}),
    ],
)
def test_a_row_says_which_mistakes_it_would_tell_of(told: dict[str, Any], expected: set[str]) -> None:
    assert {name for name, made in mistakes(ended(**told)).items() if made is not None} == expected


def test_what_was_not_scored_is_neither_right_nor_wrong() -> None:
    assert [outcome(ended(em=em)) for em in (1.0, 0.0, None)] == ["right", "wrong", "unscored"]
    assert outcome(ended(em=None, status="error")) == "failed"


def test_the_first_untrue_step_of_a_wrong_or_flawed_episode_is_the_first_that_was_judged_and_is_not_true() -> None:
    steps = [{"kind": "query"}, {"kind": "query", "truth": True}, {"kind": "answer", "truth": False}]
    assert first_untrue(ended(em=0.0, steps=steps)) == first_untrue(ended(flawed=1.0, steps=steps)) == "answer"
    assert first_untrue(ended(em=0.0, steps=steps[:2])) == NO_STEP
    assert first_untrue(ended(em=0.0, steps=steps[:1])) is None, "not judged"
    assert first_untrue(ended(steps=steps)) is None, "right"


def test_what_an_answer_is_worth_is_its_em_and_then_its_f1() -> None:
    told = [{"em": 1.0, "f1": 1.0}, {"em": 0.0, "f1": 0.5}, {"em": None, "f1": None}]
    assert list(map(worth, told)) == [1.001, 0.0005, None]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, ""),
        ({"late": None, "premature": None}, ""),
        ({"late": 0.0, "premature": 0.0}, ""),
        ({"late": 1.0, "premature": 0.0}, "over"),
        ({"late": 0.0, "premature": 1.0}, "under"),
        ({"late": 1.0, "judged_searches": 3, "needless_searches": 0}, ""),
        ({"late": 0.0, "judged_searches": 2, "needless_searches": 1}, "over"),
        ({"premature": 0.0, "judged_statements": 1, "unfounded_statements": 1}, "under"),
        ({"late": 1.0, "judged_statements": 1, "unfounded_statements": 1}, "both"),
    ],
)
def test_searching_too_much_or_too_little_is_told_by_verdicts_and_else_by_the_gold_passages(
    told: dict[str, Any], expected: str
) -> None:
    assert searching(ended(**told)) == expected

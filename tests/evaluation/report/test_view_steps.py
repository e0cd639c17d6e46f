"""Steps as they are shown: figures and verdicts, passages, what each agent held."""

from __future__ import annotations

from typing import Any

from evaluation.report.view_steps import Passage, Shelf, shown_episode, shown_question
from evaluation.report.view_text import Chip, number, printable, verdict

FOUND = {name: {"title": f"Title {name}", "text": f"Text {name}."} for name in ("d1", "d2", "d3")}


def step(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "text": "t", "valid": True, "hits": [], "said": f"I {kind}", **more}


def row(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {"id": "q", "question": "Who?", "answers": ["Ann"], "prediction": "Bob", "status": "answered"}
    return told | {"em": 0.0, "f1": 0.25, "steps": list(steps)} | more


def test_a_step_has_its_verdicts_rewards_advantage_and_log_prob_in_this_order() -> None:
    told = step("query", truth=False, rewards={"reward": 0.5, "prm": -1.25}, advantage=1.0, logp=-0.25, valid=False)
    (shown,) = shown_episode(row(told, outcome={}), {}, Shelf(0))["steps"]
    assert shown["chips"] == [
        Chip("format ✗", "bad"),
        Chip("true ✗", "bad"),
        Chip("reward +0.50", "good", 0.5),
        Chip("prm -1.25", "bad", 1.0),
        Chip("advantage +1.00", "good", 0.5),
        Chip("log-prob -0.25", "much", 0.5),
    ]


def test_what_is_not_known_is_a_dash() -> None:
    assert verdict("true", None) == Chip("true –")
    assert number("prm", None) == number("prm", float("nan")) == Chip("prm –")
    assert number("prm", 0.0) == Chip("prm 0.00", "", 0.0)


def test_only_what_has_a_sign_is_good_or_bad() -> None:
    assert [number("x", value, signed=True).tone for value in (1, -1, 0)] == ["good", "bad", ""]
    assert [number("x", value).tone for value in (1, -1, 0)] == ["much", "much", ""]


def test_a_step_of_training_without_rewards_has_dashes_and_one_of_an_evaluation_a_log_prob_alone() -> None:
    rewarded, other = step("query", rewards={"prm": 0.5}, advantage=0.5), step("answer")
    trained = shown_episode(row(rewarded, other, outcome={"reward": 1.0}), {}, Shelf(0))
    assert texts(trained["steps"][1]) == ["format ✓", "true –", "prm –", "advantage –", "log-prob –"]
    outcomes = shown_episode(row(other, outcome={"reward": 1.0}), {}, Shelf(0))
    assert texts(outcomes["steps"][0]) == ["format ✓", "true –", "reward –", "advantage –", "log-prob –"]
    assert texts(shown_episode(row(other), {}, Shelf(0))["steps"][0]) == ["format ✓", "true –", "log-prob –"]


def texts(shown: dict[str, Any]) -> list[str]:
    return [chip.text for chip in shown["chips"]]


def test_of_two_agents_each_step_tells_what_was_held_kept_and_dropped() -> None:
    gold = {"steps": [], "documents": ["d2"], "titles": []}
    steps = [
        step("query", agent="decider", hits=["d1", "d2"]),
        step("keep", agent="selector", hits=["d1", "d2"], kept=["d2"]),
        step("stop", agent="decider"),
    ]
    asked, kept, stopped = shown_episode(row(*steps, gold=gold), FOUND, Shelf(9999))["steps"]
    assert (asked["agent"], asked["evidence"], asked["gold_hits"]) == ("decider", "none", 1)
    assert kept["hits"] == [Passage("Title d1", 0, "dropped"), Passage("Title d2", 1, "gold, kept")]
    assert (kept["evidence"], stopped["evidence"]) == ("", "Title d2")


def test_gold_passages_are_told_by_title_in_a_corpus_with_other_ids() -> None:
    gold = {"steps": [], "documents": ["hotpot-7"], "titles": ["title D1 "]}
    (shown,) = shown_episode(row(step("query", hits=["d1", "d2"]), gold=gold), FOUND, Shelf(9999))["steps"]
    assert [hit.marks for hit in shown["hits"]] == ["gold", ""]


def test_a_passage_stands_on_the_page_once_and_without_room_it_has_its_title_alone() -> None:
    shelf = Shelf(300)
    assert [shelf.place(name, FOUND) for name in ("d1", "d2", "d1", "d3", "d3", "unknown")] == [
        0,
        1,
        0,
        None,
        None,
        None,
    ]
    assert [passage["text"] for passage in shelf.passages] == ["Text d1.", "Text d2."]
    assert shelf.left_out == 1
    assert shelf.place("d1", {"d1": {"title": "x", "text": "another world's"}}) is None, "not the same passage"


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

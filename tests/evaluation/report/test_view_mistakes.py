"""What an episode's row says went wrong, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.report.view_mistakes import first_untrue, judged, mistakes, outcome, searching


def row(**more: Any) -> dict[str, Any]:
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
    assert mistakes(row(**told)) == expected


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
    assert judged(row(**told)) == expected


def test_what_was_not_scored_is_neither_right_nor_wrong() -> None:
    assert [outcome(row(em=em)) for em in (1.0, 0.0, None)] == ["right", "wrong", "unscored"]
    assert outcome(row(em=None, status="error")) == "failed"


def test_the_first_untrue_step_is_the_first_that_was_judged_and_is_not_true() -> None:
    steps = [{"kind": "query"}, {"kind": "query", "truth": True}, {"kind": "answer", "truth": False}]
    assert first_untrue(row(steps=steps)) == "answer"
    assert first_untrue(row(steps=steps[:2])) is None


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
    assert searching(row(**told)) == expected

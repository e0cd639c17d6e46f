from __future__ import annotations

from typing import Any

import pytest

from evaluation.step_auc import BASELINES, headline, measure_groups, report

BASE = dict.fromkeys(BASELINES, 0.0)


def step(kind: str, valid: bool, score: float | None, *, question: str = "q", **baselines: float) -> dict[str, Any]:
    return {"id": question, "kind": kind, "valid": valid, "scores": {**BASE, "prm": score, **baselines}}


# The score knows the kind alone: queries are mostly true and get 2, answers are mostly untrue and get 1. Within queries
# it is turned round, within answers it ties.
ROWS = [
    *(step("query", True, score, position=0.0) for score in (2.0, 2.0, 2.0)),
    step("query", False, 3.0, position=-1.0),
    step("answer", True, 1.0, position=-2.0),
    *(step("answer", False, 1.0, position=-2.0) for _ in range(3)),
]


def groups(rows: list[dict[str, Any]] = ROWS) -> dict[str, Any]:
    return {group["group"]: group for group in measure_groups(rows, ["prm"], seed=0)}


def area(group: dict[str, Any], scorer: str = "prm") -> float | None:
    return group["scorers"][scorer]["auc"]


def test_a_score_that_knows_the_kind_alone_is_good_pooled_and_worthless_within_kinds() -> None:
    found = groups()
    assert list(found) == ["macro", "answer", "query", "pooled"]
    assert [area(found[name]) for name in ("query", "answer", "macro")] == [0, 0.5, 0.25]
    # 4 true (2, 2, 2, 1) against 4 untrue (3, 1, 1, 1): a 2 beats three, the 1 ties with three
    assert area(found["pooled"]) == pytest.approx((3 * 3 + 1.5) / 16)
    assert found["pooled"]["scorers"]["prm"]["auc_gain"] == pytest.approx(10.5 / 16 - 0.5)
    assert found["macro"]["scorers"]["prm"]["auc_gain"] == -0.25


def test_kind_and_position_are_baselines_of_pooled_auc() -> None:
    found = groups()
    # the kinds' shares of true steps are 3/4 and 1/4: 3 true of 4 queries, 1 of 4 answers
    assert area(found["pooled"], "kind") == pytest.approx((3 * (3 + 0.5) + 0.5 * 3) / 16)
    # positions of true steps 0, 0, 0, 2; of untrue ones 1, 2, 2, 2
    assert area(found["pooled"], "position") == pytest.approx((3 * 4 + 1.5) / 16)
    assert area(found["query"], "position") == 1
    assert "kind" not in found["query"]["scorers"], "within a kind it says nothing"


def test_a_kind_that_is_always_true_has_no_auc_and_is_not_in_the_mean() -> None:
    found = groups([*ROWS, step("subanswer", True, 5.0)])
    assert area(found["subanswer"]) is None
    assert area(found["macro"]) == 0.25
    assert found["macro"]["n"] == 8
    assert "macro" not in groups([step("query", True, 1.0)])


def test_a_step_without_score_ranks_last_and_a_scorer_without_any_has_no_auc() -> None:
    found = groups([step("query", True, None), step("query", False, 0.0)])
    assert area(found["query"]) == 0
    found = groups([step("query", True, None), step("query", False, None)])
    assert area(found["query"]) is area(found["macro"]) is area(found["pooled"]) is None
    assert area(found["query"], "logp_mean") == 0.5
    assert "accuracy_at_0" not in found["pooled"]["scorers"]["prm"]
    assert "0.0 %" not in report([*found.values()], ["prm"])


def test_intervals_are_over_questions() -> None:
    alike = [{**row, "id": f"q{n}"} for n in range(20) for row in ROWS]
    macro = groups(alike)["macro"]["scorers"]["prm"]
    assert (macro["auc_low"], macro["auc_high"]) == (0.25, 0.25), "all questions are the same"
    mixed = [{**row, "id": f"{row['kind']}{row['valid']}"} for row in ROWS]
    pooled = groups(mixed)["pooled"]["scorers"]["prm"]
    assert pooled["auc_low"] < pooled["auc"] < pooled["auc_high"]


def test_a_threshold_of_zero_is_measured_of_scorers() -> None:
    rows = [step("query", True, 1.0), step("query", True, -1.0), step("query", False, 2.0), step("query", False, -2.0)]
    found = groups(rows)["pooled"]["scorers"]["prm"]
    assert (found["accuracy_at_0"], found["kept_at_0"], found["precision_at_0"]) == (0.5, 0.5, 0.5)


def test_the_headline_names_aucs_by_kind_and_pooled_ones_beside_position_and_kind() -> None:
    metrics = headline(measure_groups(ROWS, ["prm"], seed=0), ["prm"])
    assert metrics == pytest.approx({
        "prm/auc/macro": 0.25, "prm/auc/answer": 0.5, "prm/auc/query": 0, "prm/auc/pooled": 0.65625,
        "prm/auc_gain/macro": -0.25, "prm/accuracy_at_0": 0.5, "prm/true_share": 0.5,
        "prm/logp_mean/auc/macro": 0.5, "prm/logp_mean/auc/pooled": 0.5,
        "prm/position/auc/macro": 0.75, "prm/position/auc/pooled": 0.84375, "prm/kind/auc/pooled": 0.75,
    })  # fmt: skip


def test_the_page_opens_with_aucs_within_kinds() -> None:
    page = report(measure_groups(ROWS, ["prm"], seed=0), ["prm"])
    within, pooled = page.index("## Within kinds of step"), page.index("## Pooled over kinds")
    assert within < page.index("| query (n 4, 75 % true) |") < pooled
    assert "`prm` less `logp_mean`, mean of kinds: -0.250 [" in page[within:pooled]
    assert "| kind " in page[pooled:]
    assert (
        "`prm`: a score above 0 agrees with the truth for 50.0 % of the steps (always true: 50.0 %)." in page[pooled:]
    )

from __future__ import annotations

from typing import Any

import pytest

from evaluation.steps.step_auc import ALL, BASELINES, headline, measure_groups

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
    return {group["group"]: group for group in measure_groups([rows], ["prm"], seed=0)}


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


def test_intervals_are_over_questions() -> None:
    alike = [{**row, "id": f"q{n}"} for n in range(20) for row in ROWS]
    macro = groups(alike)["macro"]["scorers"]["prm"]
    assert (macro["auc_low"], macro["auc_high"]) == (0.25, 0.25), "all questions are the same"
    mixed = [{**row, "id": f"{row['kind']}{row['valid']}"} for row in ROWS]
    pooled = groups(mixed)["pooled"]["scorers"]["prm"]
    assert pooled["auc_low"] < pooled["auc"] < pooled["auc_high"]


def test_a_score_and_the_log_probability_are_combined_and_so_are_all_baselines() -> None:
    # Ten questions alike: the score tells the first two steps apart, the log-probability the last two.
    rows = [
        step("query", valid, score, question=f"q{number}", logp_mean=logp)
        for number in range(10)
        for valid, score, logp in ((True, 1.0, 0.0), (False, -1.0, 0.0), (True, 0.0, 1.0), (False, 0.0, -1.0))
    ]
    macro = groups(rows)["macro"]["scorers"]
    assert macro["prm"]["auc"] == macro["logp_mean"]["auc"] == 0.75 + 0.125
    assert macro["prm+logp_mean"]["auc"] == 1
    assert macro["prm+logp_mean"]["auc_gain"] == 0.125
    assert macro[ALL]["auc"] == 0.875, "the log-probability is all that the baselines know"
    assert macro[f"prm+{ALL}"]["auc_gain_all"] == 0.125


def test_several_runs_are_averaged_with_an_interval_over_them() -> None:
    right = [step("query", True, 1.0), step("query", False, 0.0)]
    ties = [step("query", True, 0.0), step("query", False, 0.0)]
    macro = measure_groups([right, ties], ["prm"], seed=0)[0]
    found = macro["scorers"]["prm"]
    assert (macro["n"], macro["true"]) == (4, 0.5)
    assert (found["auc"], found["auc_seeds"], found["auc_gain"]) == (0.75, [1.0, 0.5], 0.25)
    # two means with a standard error of 1/4; Student's t with one degree of freedom has its 97.5 % quantile at 12.706
    assert found["auc_seeds_low"] == pytest.approx(0.75 - 12.706 / 4, abs=1e-3)
    assert found["auc_gain_seeds_high"] == pytest.approx(0.25 + 12.706 / 4, abs=1e-3)
    assert (found["auc_low"], found["auc_high"]) == (0.75, 0.75), "one question a run: no other can be drawn"


def test_runs_are_resampled_apart() -> None:
    rows = [{**row, "id": f"q{n}"} for n, row in enumerate(ROWS * 4)]
    once = measure_groups([rows], ["prm"], seed=0)[-1]["scorers"]["prm"]
    many = measure_groups([rows] * 4, ["prm"], seed=0)[-1]["scorers"]["prm"]
    assert many["auc"] == once["auc"]
    # four times the questions: half the width
    assert (many["auc_high"] - many["auc_low"]) == pytest.approx((once["auc_high"] - once["auc_low"]) / 2, rel=0.2)


def test_a_run_that_cannot_rank_a_kind_is_left_out_of_it() -> None:
    found = {g["group"]: g for g in measure_groups([ROWS, [step("query", True, 1.0)]], ["prm"], seed=0)}
    assert found["query"]["scorers"]["prm"]["auc_seeds"] == [0.0, None]
    assert found["query"]["scorers"]["prm"]["auc_seeds_low"] is None
    assert found["query"]["n"] == 5
    assert found["macro"]["n"] == 8


def test_the_headline_names_aucs_by_kind_and_the_gain_with_its_interval() -> None:
    measured = groups()
    metrics = headline([*measured.values()], ["prm"])
    gain = measured["macro"]["scorers"]["prm"]
    assert metrics == pytest.approx({
        "prm/auc/macro": 0.25, "prm/auc/answer": 0.5, "prm/auc/query": 0, "prm/auc/pooled": 0.65625,
        "prm/auc_gain/macro": -0.25, "prm/auc_gain/answer": 0, "prm/auc_gain/query": -0.5,
        "prm/auc_gain/macro_low": gain["auc_gain_low"], "prm/auc_gain/macro_high": gain["auc_gain_high"],
        "prm/true_share": 0.5, "prm/logp_mean/auc/macro": 0.5, "prm/logp_mean/auc/pooled": 0.5,
        "prm/position/auc/macro": 0.75, "prm/position/auc/pooled": 0.84375, "prm/kind/auc/pooled": 0.75,
        # all steps are of one question, so nothing can be fitted
        "prm/all_baselines/auc/macro": 0.5, "prm/all_baselines/auc/pooled": 0.5, "prm/prm+logp_mean/auc/macro": 0.5,
        "prm/prm+logp_mean/auc/pooled": 0.5, "prm/prm+all_baselines/auc/macro": 0.5,
        "prm/prm+all_baselines/auc/pooled": 0.5, "prm/prm+all_baselines/auc_gain_all/macro": 0,
    })  # fmt: skip


def test_other_scorers_are_named_in_the_headline() -> None:
    rows = [{**row, "scores": {**row["scores"], "other": -row["scores"]["prm"]}} for row in ROWS]
    metrics = headline(measure_groups([rows], ["prm", "other"], seed=0), ["prm", "other"])
    assert (metrics["prm/auc/query"], metrics["prm/other/auc/query"]) == (0, 1)
    assert metrics["prm/other/auc_gain/query"] == 0.5

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evaluation.steps.step_calibration import calibration, calibration_headline, expected_error, reliability


def step(kind: str, valid: bool, score: float | None, *, question: str = "q") -> dict[str, Any]:
    return {"id": question, "kind": kind, "valid": valid, "scores": {"prm": score}}


def odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


# Three of four queries said to be true at .55 are; of two said at .95 one is. Answers are said at .25, none is true.
ROWS = [
    *(step("query", valid, odds(0.55)) for valid in (True, True, True, False)),
    *(step("query", valid, odds(0.95)) for valid in (True, False)),
    *(step("answer", False, odds(0.25)) for _ in range(2)),
]


def groups(rows: list[dict[str, Any]] = ROWS) -> dict[str, Any]:
    return {group["group"]: group for group in calibration(rows, "prm", seed=0)}


def test_the_expected_error_weighs_the_distance_of_each_bin_by_its_steps() -> None:
    found = groups()
    assert list(found) == ["answer", "query", "pooled"]
    assert found["query"]["ece"] == pytest.approx((4 * 0.20 + 2 * 0.45) / 6)
    assert found["answer"]["ece"] == pytest.approx(0.25)
    assert found["pooled"]["ece"] == pytest.approx((4 * 0.20 + 2 * 0.45 + 2 * 0.25) / 8)


def test_the_reliability_curve_has_ten_bins_and_empty_ones_have_no_share() -> None:
    bins = groups()["query"]["bins"]
    assert bins["n"] == [0, 0, 0, 0, 0, 4, 0, 0, 0, 2]
    assert [bins["predicted"][i] for i in (5, 9)] == pytest.approx([0.55, 0.95])
    assert [bins["true"][i] for i in (5, 9)] == [0.75, 0.5]
    assert bins["true"][0] is None


def test_a_bin_holds_its_lower_end_and_the_last_one_certainty() -> None:
    count, predicted, right = reliability(np.array([0.0, 0.5, 1.0]), np.array([False, True, True]), np.ones((1, 3)))
    assert count[0].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert predicted[0].sum() == 1.5
    assert right[0].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert expected_error(count, predicted, right) == pytest.approx(0.5 / 3)


def test_over_and_underconfidence_of_questions_widens_the_interval() -> None:
    alike = [{**row, "id": f"q{n}"} for n in range(10) for row in ROWS]
    found = groups(alike)["query"]
    assert [found["ece_low"], found["ece_high"]] == pytest.approx([found["ece"]] * 2), "all questions are the same"
    found = groups([{**row, "id": f"q{n}"} for n, row in enumerate(ROWS * 5)])["query"]
    assert found["ece_low"] < found["ece"] < found["ece_high"]


def test_a_threshold_of_zero_is_measured() -> None:
    rows = [step("query", True, 1.0), step("query", True, -1.0), step("query", False, 2.0), step("query", False, -2.0)]
    found = groups(rows)["pooled"]
    assert found["accuracy_at_0"] == 0.5


def test_steps_without_score_are_left_out() -> None:
    assert groups([*ROWS, step("subanswer", True, None), step("query", True, None)]) == groups()
    assert calibration([step("query", True, None)], "prm", seed=0) == []


def test_extreme_scores_are_certainties() -> None:
    found = groups([step("query", True, 1e9), step("query", True, -1e9)])["query"]
    assert found["ece"] == pytest.approx(0.5)


def test_the_headline_names_the_error_by_kind() -> None:
    metrics = calibration_headline({name: calibration(ROWS, "prm", seed=0) for name in ("prm", "other")})
    assert metrics["prm/ece/answer"] == pytest.approx(0.25)
    assert metrics["prm/other/ece/answer"] == pytest.approx(0.25)
    assert metrics["prm/accuracy_at_0"] == 6 / 8

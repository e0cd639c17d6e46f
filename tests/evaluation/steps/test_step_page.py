from __future__ import annotations

from evaluation.steps.step_auc import measure_groups
from evaluation.steps.step_calibration import calibration
from evaluation.steps.step_page import page
from tests.evaluation.steps.test_step_auc import ROWS, step


def text(rows: list[dict] = ROWS) -> str:
    return page(measure_groups([rows], ["prm"], seed=0), {"prm": calibration(rows, "prm", seed=0)})


def test_the_page_opens_with_what_the_score_gains_within_kinds() -> None:
    answer = text().split("\n\n")[1]
    assert "`prm` ranks true above untrue steps with an AUC of 0.250 [" in answer
    assert " -0.250 [" in answer.partition("against the policy's mean log-probability")[0]
    assert "gains least in steps of kind query: -0.500 [" in answer


def test_aucs_within_kinds_come_before_pooled_ones_and_calibration() -> None:
    shown = text()
    within, pooled, last = (shown.index(f"## {name}") for name in ("Within kinds of step", "Pooled", "Calibration"))
    assert within < shown.index("| query (n 4, 75 % true) |") < pooled < last
    assert "| kind " in shown[pooled:last]
    assert "| prm " in shown[last:]
    assert shown[last:].rstrip().endswith("|      50.0 % |"), "agrees at 0"


def test_a_scorer_without_any_score_has_no_figure_and_says_so() -> None:
    shown = text([step("query", True, None), step("query", False, None)])
    assert shown.split("\n\n")[1].startswith("`prm`: there is nothing to rank")
    assert "0.0 %" not in shown
    assert "Calibration" not in shown

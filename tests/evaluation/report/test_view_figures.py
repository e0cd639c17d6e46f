"""Figures inside a page: names of their own, a title, a readable size; and the same values as a table."""

from __future__ import annotations

import math
import re

from evaluation.pages.plots import Dot, Line, dots
from evaluation.report.view_figures import curves_figure, inline, result_figures
from evaluation.report.view_values import curve_values, dot_values, line_values

CURVES = {"reward": {"rl": [(0.0, 0.5), (4.0, 0.25), (8.0, 1.0)], "dpo": [(1.0, 0.0), (2.0, 0.125)]}}


def test_two_figures_on_a_page_have_no_name_in_common_and_refer_to_their_own() -> None:
    one, other = (curves_figure(CURVES, name) for name in ("a", "b"))
    ids = [re.findall(r' id="([^"]*)"', text) for text in (one, other)]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for text, names in zip((one, other), ids, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) == set(names)


def test_a_title_is_told_once_escaped_and_text_stays_readable() -> None:
    drawn = inline(dots({"p": {"arm": Dot(0.5)}}, 'A & "B"', axis="x"), "a")
    assert 'aria-label="A &amp; &quot;B&quot;"' in drawn
    width, least = (float(value) for value in re.findall(r"(?:max|min)-width:(\d+)px", drawn)[:2])
    assert 0.75 * width <= least < width, "its text is of 12 pixels"


def test_the_values_of_dots_have_their_intervals_and_what_they_are_compared_with() -> None:
    panels = {"query": {"prm": Dot(0.75, 0.5, 1.0, beside={"log": 0.25}), "other": Dot(0.5)}}
    assert dot_values(panels, ("kind", "score", "AUC")) == (
        ["kind", "score", "AUC", "log"],
        [["query", "prm", "0.750 [0.500, 1.000]", "0.250"], ["query", "other", "0.500", "–"]],
    )


def test_means_over_seeds_are_told_as_text_with_their_seeds() -> None:
    place = {"experiment": "exp", "stage": "eval", "dataset": "toy", "split": "dev", "em_low": 0.4, "em_high": 0.9}
    rows = [place | {"seed": seed, "em": em} for seed, em in ((0, 0.5), (1, 0.75))]
    results = {"rows": rows, "stopping": [], "rankings": []}
    assert result_figures(results)["arms"]["values"] == (
        ["dataset", "arm", "exact match, %", "single seeds"],
        # standard error 12.5; Student's t with one degree of freedom has its 97.5 % quantile at 12.706
        [["toy/dev", "exp:eval", "62.5 [-96.3, 221.3]", "50.0, 75.0"]],
    )
    alone = result_figures(results | {"rows": rows[:1]})
    assert alone["arms"]["values"] is None, "they stand in the table of results"


def test_the_axis_of_curves_is_named_once_a_column() -> None:
    assert curves_figure(CURVES, "a").count(">updates</text>") == 1
    assert curves_figure({f"tag{n}": CURVES["reward"] for n in range(5)}, "a").count(">updates</text>") == 3


def test_the_values_of_lines_are_the_means_of_their_seeds() -> None:
    panels = {"query": {"prm": Line([0.125, 2], [[0.25, math.nan], [0.75, math.nan]])}}
    _, rows = line_values(panels, ("kind", "score", "x", "y"))
    assert rows == [["query", "prm", "0.125", "0.500"], ["query", "prm", "2", "–"]]


def test_the_values_of_a_curve_are_where_it_starts_ends_and_how_far_it_goes() -> None:
    assert curve_values(CURVES)[1] == [
        ["reward", "rl", "0 to 8", "0.500", "1.000", "0.250", "1.000"],
        ["reward", "dpo", "1 to 2", "0.000", "0.125", "0.000", "0.125"],
    ]

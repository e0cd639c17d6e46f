from __future__ import annotations

import math
import re

import pytest
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from evaluation.pages.plots import COLORS, Dot, Dots, Line, Lines, legend_columns, look
from tests.evaluation.contrast import contrast


def points(text: str) -> list[tuple[float, float]]:
    """Where the centres of a figure's points are, in the order drawn: right and down are positive."""
    groups = re.findall(r'<g id="PathCollection_\d+">(.*?)</g>\n   </g>', text, re.DOTALL)
    uses = [re.search(r' x="([\d.]+)" y="([\d.]+)"', group) for group in groups]
    return [(float(use[1]), float(use[2])) for use in uses if use]


def test_the_mean_is_over_the_seeds_that_have_a_value() -> None:
    line = Line([1, 2, 3], [[1.0, math.nan, math.nan], [3.0, 5.0, math.nan]])
    assert line.mean[:2] == [2, 5]
    assert math.isnan(line.mean[2])


def test_a_figure_is_the_same_text_whenever_it_is_drawn_and_another_where_a_value_differs() -> None:
    def drawn(value: float) -> str:
        return Dots({"panel": {"arm": Dot(value, 0.4, 0.8, [0.5, value])}}, "Title", "AUC").svg()

    assert drawn(0.6) == drawn(0.6)
    assert drawn(0.6) != drawn(0.7)
    assert "<dc:date>" not in drawn(0.6)


def test_text_stays_text_and_names_panels_rows_and_what_is_compared() -> None:
    text = Dots({"one": {"arm a": Dot(0.6, beside={"log": 0.5})}, "two": {"arm b": Dot(0.7)}}, "T", "AUC").svg()
    for word in ("one", "two", "arm a", "arm b", "AUC", "log"):
        assert f">{word}</text>" in text, word


def test_a_higher_value_is_further_right_and_rows_come_in_order() -> None:
    text = Dots({"p": {"first": Dot(0.25), "second": Dot(0.75)}}, "T", "x", limits=(0, 1)).svg()
    first, second = points(text)
    assert first[0] < second[0]
    assert first[1] < second[1], "the first row is on top"
    third = points(Dots({"p": {"first": Dot(0.5)}}, "T", "x", limits=(0, 1)).svg())[0]
    assert first[0] < third[0] < second[0]


def test_lines_show_every_seed_and_references_show_none() -> None:
    line = {"arm": Line([0, 1], [[0.2, 0.4], [0.6, 0.8], [0.7, 0.9]])}
    alone = Lines({"p": line}, "T", "x", "y").svg()
    # paths with a line style of their own: three seeds and their mean
    assert len(re.findall(r'd="M [\d. ]+\nL [\d. ]+\n?" clip-path', alone)) == 4 + grid(alone)
    more = Lines({"p": {**line, "start": Line([0, 1], [[0.1, 0.1], [0.3, 0.3]], reference=True)}}, "T", "x", "y").svg()
    assert len(re.findall(r'd="M [\d. ]+\nL [\d. ]+\n?" clip-path', more)) == 5 + grid(more)


def test_references_are_told_apart_by_their_dashes() -> None:
    start, bound = (Line([0, 1], [[value, value]], reference=True) for value in (0.1, 0.3))
    text = Lines({"p": {"start": start, "bound": bound}}, "T", "x", "y").svg()
    dashes = re.findall(r'd="M [\d. ]+\nL [\d. ]+\n?" clip-path[^>]*stroke-dasharray: ([\d., ]+)', text)
    assert len(dashes) == len(set(dashes)) == 2


def grid(text: str) -> int:
    return len(re.findall(r"stroke: #e5e5e5", text))


def test_the_area_of_a_point_shows_its_weight() -> None:
    text = Lines({"p": {"arm": Line([0, 1], [[0.2, 0.4]], sizes=[1, 9])}}, "T", "x", "y").svg()
    outlines = re.findall(r'<path d="(M[^"]*z\n)" clip-path', text)
    widths = [max(xs) - min(xs) for xs in ([float(x) for x in re.findall(r"([\d.]+) [\d.]+\n", o)] for o in outlines)]
    # areas of 4 + 60/9 and 4 + 60 square points
    assert len(widths) == 2
    assert (widths[1] / widths[0]) ** 2 == pytest.approx(64 / (4 + 60 / 9), rel=0.01)


@pytest.mark.parametrize(
    ("labels", "width", "most", "expected"),
    [
        (["a"] * 6, 10.0, 5, 5),
        (["a"] * 2, 10.0, 5, 2),
        # 43 letters are 23 times as wide as their size of an eighth of an inch: 3.2 inches with a key
        (["no_refinement_long_0:eval_rl_process_reward"] * 9, 11.0, 5, 3),
        (["no_refinement_long_0:eval_rl_process_reward"] * 9, 6.5, 5, 1),
        (["no_refinement_long_0:eval_rl_process_reward", "b", "c", "d"], 5.0, 4, 3),
        ([], 5.0, 2, 1),
    ],
)
def test_a_legend_has_as_many_columns_as_have_room(labels: list[str], width: float, most: int, expected: int) -> None:
    assert legend_columns(labels, width, most) == expected


@pytest.mark.parametrize("number", [1, 2, 4])
def test_every_text_of_a_legend_is_within_the_figure_and_panels_keep_their_height(number: int) -> None:
    arms = {f"no_refinement_long_{arm}:eval_rl_process_reward": Line([1, 2], [[0.1, 0.2]]) for arm in range(12)}
    panels = [str(panel) for panel in range(number)]
    compared = {"arm": Dot(0.5, beside=dict.fromkeys(list(arms)[:4], 0.4))}
    drawn = [
        Lines(dict.fromkeys(panels, arms), "T", "x", "y").svg(),
        Dots(dict.fromkeys(panels, compared), "T", "x").svg(),
    ]
    for text in drawn:
        ((width, height),) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
        found = re.findall(r'<text[^>]* x="(-?[\d.]+)" y="(-?[\d.]+)"[^>]*>(no_[^<]*)</text>', text)
        assert len(found) in (4, 12)
        for x, y, label in found:
            long = text_to_path.get_text_width_height_descent(label, FontProperties(size=9), ismath=False)[0]
            assert 0 <= float(x) <= float(x) + long <= float(width)
            assert 0 <= float(y) <= float(height)
    (panel,) = re.findall(r'<g id="patch_2">\s*<path d="([^"]*)"', drawn[0])
    heights = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", panel)]
    assert max(heights) - min(heights) > 100, "points"


@pytest.mark.parametrize("color", [color for color in COLORS if color != "#000000"])  # a page's own text colour
def test_colours_stand_out_on_white_and_on_a_dark_page(color: str) -> None:
    assert min(contrast(to_rgb(color), to_rgb(paper)) for paper in ("#ffffff", "#141414")) >= 3


def test_lines_are_told_apart_without_colour() -> None:
    looks = [(look(place)["marker"], str(look(place)["ls"])) for place in range(30)]
    assert len(set(looks)) == 30
    assert len({marker for marker, _ in looks[:7]}) == 7


def test_arms_differ_in_marker_and_dash() -> None:
    arms = {f"arm {number}": Line([0, 1], [[0.2, 0.1 * number]]) for number in range(3)}
    text = Lines({"p": arms}, "T", "x", "y").svg()
    strokes = re.findall(r'clip-path="[^"]*" style="fill: none; (stroke-dasharray: [^;]*)?[^"]*stroke-width: 1.6', text)
    assert len(strokes) == len(set(strokes)) == 3
    markers = re.findall(r'<g id="PathCollection_\d+">\s*<defs>\s*<path [^>]*d="([^"]*)"', text)
    assert len(markers) == len(set(markers)) == 3

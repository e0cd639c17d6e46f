"""The page in a real browser for who looks first: what it begins with, drawings, values where a pointer is, phones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.report.page import write_page
from evaluation.report.run import read_run
from tests.evaluation.report.browsing import opened
from tests.evaluation.report.fakes import arm, experiment, judged
from tests.evaluation.report.stages import two_policies

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose reinforcement mended question 1 of 2, with tags in what it wrote."""
    runs = tmp_path_factory.mktemp("mended")
    rows = {"eval_sft": (1.0, 0.0), "eval_rl": (1.0, 1.0)}
    stages = {
        name: arm(runs, name, [judged(n, em, True, True) for n, em in enumerate(ems)]) for name, ems in rows.items()
    }
    predictions = stages["eval_rl"] / "data" / "predictions-toy-dev.jsonl"
    said = "Now I ask. </step> <subquery> who is 1? </subquery>"
    predictions.write_text(predictions.read_text().replace('"who is 1?"', json.dumps(said)))
    folder = experiment(runs, stages)
    two_policies(folder)
    write_page(folder / "report.html", [read_run(folder)])
    return folder / "report.html"


def test_what_reinforcement_mended_is_open_with_its_tags_as_chips(browser: Any, mended: Path) -> None:
    for page in opened(browser, mended):
        first = page.locator("#list > details").first
        assert first.locator("h3").text_content() == "Question 1?"
        assert page.locator("#list > [open]").count() == 1
        after = first.locator(".e", has_text="eval_rl")
        assert after.locator(".tag").all_text_contents() == ["</step>", "<subquery>", "</subquery>"], "what is copied"
        assert after.locator(".tag s").first.evaluate("(one) => one.getBoundingClientRect().width") == 0, "is not seen"
        assert after.locator("p").first.text_content() == "Now I ask. </step> <subquery> who is 1? </subquery>"
        assert after.locator("h4").get_attribute("title") == "reinforcement"


def test_it_begins_with_four_numbers_and_the_pipeline_and_links_to_no_empty_section(browser: Any, mended: Path) -> None:
    for page in opened(browser, mended):
        assert page.locator(".numbers b").all_inner_texts() == ["100.0 %", "+50.0", "1.50", "3 min"]
        states = page.locator(".pipeline li").all_inner_texts()
        assert states == ["✓ sft", "✓ rl", "✓ eval_sft", "✓ eval_rl"]
        assert page.locator(".pipeline i").first.get_attribute("aria-label") == "finished"
        linked = page.locator("nav a").all_inner_texts()
        assert linked == ["Results", "Stages", "What went wrong", "Two arms", "Episodes"]


def test_a_tree_is_drawn_with_a_node_for_each_step_and_its_path_is_thick(browser: Any, large: Path) -> None:
    for page in opened(browser, large):
        page.locator("#trees-drawn details.t > summary").click()
        drawn = page.locator("svg.grown")
        assert drawn.locator("text").all_text_contents() == ["answer", "query", "query", "query", "question"]
        assert drawn.locator("path.chosen").count() == 2
        assert drawn.locator("path").count() == 4
        assert (
            drawn.locator("title").first.text_content() == "answer\nN 1, Q 1.00, P 1.00\nanswered, value 1.00\nsays end"
        )


def test_a_pointer_is_told_the_values_of_a_chart(browser: Any, large: Path) -> None:
    for page in opened(browser, large):
        chart = page.locator("#figure-curves-0 .chart")
        chart.locator("svg").hover(position={"x": 60, "y": 40})
        assert chart.locator(".tip").inner_text() == "0 updates\nrl: 0.25"
        page.locator("h1").hover()
        assert chart.locator(".tip").is_hidden()
        told = page.locator("svg.dot title").first.text_content()
        assert told == "exp:eval: 100.0 [50.0, 100.0]"


@pytest.mark.parametrize(
    ("values", "most", "ends"),
    [
        ([0.89, 0.9], None, ["0.85", "0.94"]),  # 5 % to each side of the middle
        ([0.5, 0.5], 1, ["0.45", "0.55"]),
        ([0.99, 0.98], 1, ["0.9", "1"]),
        ([0.0, 0.0], 1, ["0", "0.1"]),
        ([20.0, 80.0], 100, ["20", "80"]),
    ],
)
def test_an_axis_is_never_finer_than_five_percent_and_ends_where_its_values_do(
    browser: Any, large: Path, values: list[float], most: int | None, ends: list[str]
) -> None:
    shown = large.read_text()
    before = '"reward":{"rl":{"points":[[0.0,0.25],[1.0,0.75],[2.0,0.5]]}}},"most":{}'
    assert before in shown
    points = json.dumps([[place, value] for place, value in enumerate(values)])
    changed = f'"reward":{{"rl":{{"points":{points}}}}}}},"most":{json.dumps({"reward": most} if most else {})}'
    path = large.with_name("axis.html")
    path.write_text(shown.replace(before, changed))
    for page in opened(browser, path):
        labels = page.locator("#figure-curves-0 text").all_text_contents()
        assert [labels[0], labels[2]] == ends


def test_on_a_phone_exact_match_is_in_view_and_a_table_says_that_it_scrolls(browser: Any, mended: Path) -> None:
    for page in opened(browser, mended, viewport={"width": 390, "height": 800}):
        results = page.get_by_role("region", name="Results: toy/dev")
        assert results.locator("th").nth(1).inner_text() == "EM"
        box = results.locator("td").first.bounding_box()
        assert box["x"] + box["width"] <= 390
        page.locator(".w.wide").first.wait_for()
        hint = results.evaluate("(one) => getComputedStyle(one, '::before').content")
        assert "scrolls sideways" in hint
    for page in opened(browser, mended, viewport={"width": 1280, "height": 800}):
        hint = page.get_by_role("region", name="Results: toy/dev").evaluate("(one) => one.className")
        assert hint == "w", "nothing is wider than its place"

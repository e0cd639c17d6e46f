"""The page in a real browser: for every reader, with filters, counts, trees and figures."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evaluation.report.page import write_episode
from tests.evaluation.contrast import contrast
from tests.evaluation.report.browsing import opened
from tests.evaluation.report.fakes import judged

pytestmark = pytest.mark.browser
A4 = {"width": 794, "height": 1123}  # pixels
LEVELS = "[...document.querySelectorAll('h1,h2,h3,h4,h5')].map((h) => +h.tagName[1])"


def visible(page: Any) -> list[str]:
    """The question and arm of each episode that the filters leave, `0a` for question 0 of eval_sft, b of eval_rl."""
    return page.evaluate("""() => {
        document.getElementById("unfold").click();
        return [...document.querySelectorAll("#list > :not([hidden]) .e:not([hidden])")].map((e) =>
            e.closest("details.q").id.slice(1) + (e.querySelector("h4").textContent === "eval_sft" ? "a" : "b"));
    }""")


def choose(page: Any, **chosen: str) -> None:
    for name, value in chosen.items():
        field = page.locator(f"#filters [name={name}]")
        field.fill(value) if name == "text" else field.select_option(label=value)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "0a 0b 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b"),
        ({"arm": "eval_rl"}, "0b 1b 2b 3b 4b 5b"),
        ({"outcome": "wrong"}, "1a 3a 3b 4b 5b"),
        ({"arm": "eval_rl", "outcome": "right"}, "0b 1b 2b"),
        ({"mistake": "right but flawed"}, "2b"),
        ({"hops": "2"}, "1a 1b 4a 4b"),
        ({"status": "step_budget", "arm": "eval_sft"}, "1a 3a"),
        ({"searching": "too little", "arm": "eval_sft"}, "1a 4a 5a"),
        ({"searching": "too much"}, "0b 1b 2a"),
        ({"outcome": "failed"}, "5a"),
        ({"dataset": "toy/dev", "untrue": "answer"}, "1a 3a 3b 4b 5b"),
        ({"text": "WHO IS 3?"}, "3a 3b"),
        ({"text": "who wrote it? ann"}, "0a 0b 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b"),
        ({"text": "x / y 4"}, "4a 4b"),
    ],
)
def test_filters_leave_the_episodes_that_fit(shown: Any, chosen: dict[str, str], expected: str) -> None:
    choose(shown, **chosen)
    assert visible(shown) == expected.split()
    assert f"{len(expected.split())} episode" in shown.locator("#shown").inner_text()
    assert shown.told == [shown.url], "the page itself and nothing else"
    shown.get_by_role("button", name="Show all").click()
    shown.wait_for_function("document.getElementById('shown').textContent.startsWith('12 ')")


def test_two_arms_stand_side_by_side_sorted_by_difference_and_aligned_by_step(shown: Any) -> None:
    differ = shown.locator("#filters [name=differ]")
    choose(shown, arm="eval_sft", against="eval_sft")
    assert differ.is_disabled()
    choose(shown, against="eval_rl")
    differ.check()
    assert visible(shown) == ["1a", "1b", "4a", "4b"], "5 failed"
    shown.evaluate("document.querySelector('#q1e0 .h').open = true")  # makes a step of one side longer
    one, other = (shown.locator(f"#{id_} .s").nth(1).bounding_box() for id_ in ("q1e0", "q1e1"))
    assert one["y"] == other["y"]
    assert one["x"] + one["width"] <= other["x"]
    differ.uncheck()
    assert visible(shown)[:2] == ["0a", "0b"], "the order comes back"


def test_every_count_leads_to_just_as_many_episodes_whatever_was_filtered(shown: Any) -> None:
    links = shown.locator("#mistakes-drawn td a")
    assert links.count() > 6
    for number in range(links.count()):
        choose(shown, outcome="right", text="nothing")
        links.nth(number).click()
        told = f"{links.nth(number).inner_text()} episode"
        shown.wait_for_function("told => document.getElementById('shown').textContent.startsWith(told)", arg=told)
    links.first.click()
    assert visible(shown) == ["1a", "3a"]
    choose(shown, outcome="right")
    links.first.click()  # once more: the address is the same
    assert visible(shown) == ["1a", "3a"]


def test_a_difference_leads_to_its_question_though_a_filter_hides_it(shown: Any) -> None:
    choose(shown, outcome="failed")
    row = shown.locator("#arms-drawn tbody tr").first
    assert row.inner_text().split("\t") == ["Question 1?", "+100", "+100.0", "(none)", "x"]
    row.locator("a").click()
    shown.locator("#q1e1").wait_for(state="visible")


def test_an_episode_has_what_was_written_found_and_known_and_passages_unfold_in_place(shown: Any) -> None:
    shown.locator("#q1 > summary").click()
    episode = shown.locator("#q1e0")
    text = shown.locator("#q1").text_content()
    for part in ("1. query", "who is 1?", "true ✓", "EM 0.0", "step_budget", "Who wrote it? Ann", "wrong ✗"):
        assert part in text
    episode.locator(".h > summary").first.click()
    assert episode.locator(".h > summary").first.inner_text() == "2 passages, 1 gold"
    passage = episode.locator(".h li summary", has_text="Title d1 gold")
    for there in (True, False):
        passage.press("Enter")
        assert episode.get_by_text("Text of d1.").is_visible() == there


def test_a_tree_unfolds_with_its_figures_its_chosen_path_and_what_was_judged(browser: Any, large: Path) -> None:
    for page in opened(browser, large):
        page.locator("#trees-drawn details.t > summary").click()
        tree = page.locator("ul.tree")
        assert tree.get_by_text("★").count() == 3, "the question, the good branch, its end"
        summary = tree.locator("summary", has_text="says good Who?")
        assert summary.inner_text() == "★ query N 3, Q 0.80, P 0.75 1 judgement says good Who?"
        good = summary.locator("..")
        assert "judged better than “bad”: it asks for the hop" in good.inner_text()
        assert "answer N 1, Q 1.00, P 1.00 answered, value 1.00 says end" in good.inner_text()
        assert tree.locator("li > b", has_text="query").count() == 1, "idle has nothing to unfold"
        assert "1 of 1 trees: where least was decided." in page.locator("#trees-drawn").inner_text()


def test_training_episodes_unfold_with_their_tree_and_questions_along_their_curve(browser: Any, large: Path) -> None:
    for page in opened(browser, large):
        drawn = page.locator("#training-drawn")
        drawn.get_by_text("Iteration 3, after update 4").click()
        drawn.locator("details.t").first.wait_for()  # what is unfolded is drawn a moment later
        assert drawn.locator("details.t").count() == 1, "both begin with the same turn"
        assert drawn.locator("article h4").all_inner_texts() == ["best", "worst"]
        assert "reward 1.00" in drawn.locator("article").first.inner_text()
        rows = drawn.locator("tbody tr")
        assert rows.first.inner_text().split("\t") == ["Question 0?", "✗", "✓", "✓"]
        drawn.locator("details", has_text="Question 0?").last.locator("summary").first.click()
        assert drawn.get_by_text("the same steps").count() == 2, "at the second point and the third"


def test_figures_are_drawn_by_their_values_which_are_tables_too(browser: Any, large: Path) -> None:
    for page in opened(browser, large):
        (line,) = page.locator("#figure-curves-0 .chart polyline").all()
        heights = [float(point.split(",")[1]) for point in line.get_attribute("points").split()]
        assert heights[0] > heights[2] > heights[1], "0.25, 0.75, 0.5, from above"
        assert heights[0] - heights[2] == pytest.approx(heights[2] - heights[1])
        assert page.locator("#figure-auc svg.dot").count() == page.locator("#figure-auc .value").count() > 3
        assert page.locator("figure").count() == 5
        told = {
            "Exact match by arm": ["toy/dev", "exp:eval", "100.0 [50.0, 100.0]"],
            "Results by hops": ["toy/dev: exact match, %", "exp:eval", "1", "100.000"],
            "Learning curves of exp/seed0": ["reward", "rl", "0 to 2", "0.250", "0.500", "0.250", "0.750"],
        }
        for caption, cells in told.items():
            assert values(page, caption)[0] == cells
        # true steps score 1, 1, 1, -1 and untrue ones -1, -1, -1, 1: (3 * 3.5 + 1.5) of 16 pairs
        ranked = {(kind, name): value for kind, name, value in values(page, "AUC by kind of step")}
        assert ranked["query", "prm"].startswith("0.750 [")
        assert len(values(page, "Reliability by kind of step")) > 1


def values(page: Any, caption: str) -> list[list[str]]:
    page.get_by_text(f"{caption}: the values").click()
    rows = page.get_by_role("table", name=f"{caption}, the values").locator("tbody tr").all_inner_texts()
    return [row.split("\t") for row in rows]


def test_without_script_the_page_says_so_and_shows_the_results(browser: Any, path: Path) -> None:
    for page in opened(browser, path, java_script_enabled=False):
        assert page.get_by_text("scripts are off").is_visible()
        assert page.get_by_role("table", name="Results: toy/dev").is_visible()
        assert page.locator(".drawn:visible").count() == 0, "no empty sections"
        assert page.locator("nav").count() == 1
        assert not page.locator("nav").is_visible()


def test_on_a_phone_nothing_is_wider_than_the_screen_and_figures_can_be_read(
    browser: Any, path: Path, large: Path
) -> None:
    for page in opened(browser, path, viewport={"width": 360, "height": 700}):
        page.locator("#unfold").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("#q1e1").bounding_box()["y"] > page.locator("#q1e0").bounding_box()["y"]
    for page in opened(browser, large, viewport={"width": 360, "height": 700}):
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        text = "[...document.querySelectorAll('.chart svg')].map((svg) => svg.getScreenCTM().a * 11)"
        assert min(page.evaluate(text)) >= 9, "pixels"
        page.locator("figure").first.focus()
        assert page.evaluate("document.activeElement.tagName") == "FIGURE"


def test_on_paper_tables_are_whole_and_what_is_unfolded_is_there(browser: Any, path: Path) -> None:
    for page in opened(browser, path, viewport=A4):
        page.locator("#unfold").click()
        page.emulate_media(media="print")
        wide = "[...document.querySelectorAll('.w')].filter((w) => w.scrollWidth > w.clientWidth + 1 && w.clientWidth)"
        assert page.evaluate(f"{wide}.length") == 0
        assert page.locator("#q1e0").is_visible()
        assert page.locator("#q1e0 .h ul").first.is_visible(), "what a step found"
        assert not page.locator("#filters").is_visible()
        assert not page.get_by_text("Settings and endings").locator("..").locator("ul").first.is_visible(), (
            "still folded"
        )


def test_the_gold_chain_is_beside_the_episode_and_stays_there(shown: Any) -> None:
    shown.locator("#q1 > summary").click()
    shown.evaluate("document.querySelector('#q1 .arms').style.paddingBottom = '3000px'")
    shown.evaluate("scrollTo(0, document.querySelector('#q1').getBoundingClientRect().top + scrollY + 800)")
    chain, episode = shown.locator("#q1 .about").bounding_box(), shown.locator("#q1e0").bounding_box()
    assert chain["x"] + chain["width"] <= episode["x"]
    assert 0 <= chain["y"] < 900


def test_the_keyboard_reaches_results_filters_and_episodes(shown: Any) -> None:
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    shown.locator("#q0 > summary").focus()
    shown.keyboard.press("Enter")
    shown.locator("#q0e0").wait_for()
    assert all(after - before <= 1 for before, after in pairwise(shown.evaluate(LEVELS))), "no level is skipped"
    unnamed = "[...document.querySelectorAll('select,input,button')].filter((f) => !f.labels?.length && !f.textContent)"
    assert shown.evaluate(f"{unnamed}.length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_in_dark(browser: Any, path: Path, scheme: str) -> None:
    for page in opened(browser, path, color_scheme=scheme):
        page.locator("#unfold").click()
        paper = rgb(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for selector in ("p", ".n", "a", ".m.right", ".m.wrong", "caption", ".e h4"):
            ink = rgb(page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color"))
            assert contrast(ink, paper) >= 4.5, selector
        for selector, least in ((".value", 3), (".dot .line", 3)):
            drawn = page.evaluate(f"(s => [s.fill, s.stroke])(getComputedStyle(document.querySelector('{selector}')))")
            assert max(contrast(rgb(colour), paper) for colour in drawn if "rgb" in colour) >= least, selector


def rgb(colour: str) -> list[float]:
    return [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]


def test_a_page_of_one_question_skips_no_heading(browser: Any, tmp_path: Path) -> None:
    write_episode(
        tmp_path / "one.html", "eval", judged(0, 1.0, True, True), {"d0": {"title": "Zero", "text": "It is."}}
    )
    for page in opened(browser, tmp_path / "one.html"):
        assert page.evaluate(LEVELS) == [1, 2, 3, 3, 3]
        assert page.get_by_role("heading", level=1).inner_text() == "Question 0?"
        assert "who is 0?" in page.locator("article").inner_text()

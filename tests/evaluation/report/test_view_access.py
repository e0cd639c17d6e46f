"""The page for every reader: without a script, on a phone, on paper, by keyboard and screen reader, light and dark."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evaluation.report.view_page import write_episode, write_page
from evaluation.report.view_run import read_run
from tests.evaluation.contrast import contrast
from tests.evaluation.report.browsing import opened
from tests.evaluation.report.view_fakes import arm, experiment, judged
from tests.evaluation.report.view_stages import every_stage

pytestmark = pytest.mark.browser
A4 = {"width": 794, "height": 1123}  # pixels


def test_without_script_everything_is_listed_and_links_unfold_what_they_lead_to(browser: Any, path: Path) -> None:
    for page in opened(browser, path, java_script_enabled=False):
        assert not page.locator("#filters").is_visible()
        assert page.locator("#list summary h3").count() == 6
        assert page.locator("#e1").is_visible(), "folded open"
        page.locator("td[data-count=wrong] a").first.click()
        page.locator("#list-0-wrong a").first.click()
        assert page.locator("#e1").is_visible()
        page.locator("#e1 .h summary").first.click()
        page.locator("#e1 .h a").first.click()
        assert page.url.endswith("#p0")
        assert page.locator("#p0").is_visible()


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Any, path: Path) -> None:
    for page in opened(browser, path, viewport={"width": 360, "height": 700}):
        page.locator("#unfold").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("#e7").bounding_box()["y"] > page.locator("#e1").bounding_box()["y"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with figures."""
    runs = tmp_path_factory.mktemp("figures")
    groups = [
        {"dataset": "toy", "split": "dev", "n": 1, "em": em, "group": f"hops={h}"} for h, em in ((1, 1.0), (2, 0.5))
    ]
    stages = every_stage(runs) | {"eval": arm(runs, "eval", [judged(0, 1.0, True, True)], groups=groups)}
    folder = experiment(runs, stages)
    write_page(folder / "report.html", [read_run(folder)])
    return folder / "report.html"


def test_on_a_phone_figures_scroll_and_their_text_is_readable(browser: Any, large: Path) -> None:
    for page in opened(browser, large, viewport={"width": 360, "height": 700}):
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("figure").count() == 5
        text = "[...document.querySelectorAll('figure svg')].map((svg) => svg.getScreenCTM().a * 9)"
        assert min(page.evaluate(text)) >= 9, "pixels of 9 points"
        page.locator("figure").first.focus()
        assert page.evaluate("document.activeElement.tagName") == "FIGURE"


def test_on_paper_tables_are_whole_and_what_is_unfolded_is_there(browser: Any, path: Path) -> None:
    for page in opened(browser, path, viewport=A4):
        page.locator("#unfold").click()
        page.emulate_media(media="print")
        wide = "[...document.querySelectorAll('.w')].filter((w) => w.scrollWidth > w.clientWidth + 1 && w.clientWidth)"
        assert page.evaluate(f"{wide}.length") == 0
        assert page.locator("#e1").is_visible()
        assert page.locator("#e1 .h ul").first.is_visible(), "what a step found"
        assert not page.locator("#list-0-wrong").is_visible(), "still folded"


def test_without_script_everything_is_on_paper(browser: Any, path: Path) -> None:
    for page in opened(browser, path, java_script_enabled=False):
        assert not page.locator("#list-0-wrong").is_visible(), "folded on the screen"
        page.emulate_media(media="print")
        for id_ in ("#e1", "#e7", "#list-0-wrong", "#e1 .h ul"):
            assert page.locator(id_).first.bounding_box()["height"] > 0, id_


def test_the_gold_chain_is_beside_the_episode_and_stays_there(shown: Any) -> None:
    shown.locator("#q1 > summary").click()
    shown.evaluate("document.querySelector('#a1 .arms').style.paddingBottom = '3000px'")
    shown.evaluate("scrollTo(0, document.querySelector('#a1').getBoundingClientRect().top + scrollY + 800)")
    chain, episode = shown.locator("#a1 .about").bounding_box(), shown.locator("#e1").bounding_box()
    assert chain["x"] + chain["width"] <= episode["x"]
    assert 0 <= chain["y"] < 900


def test_the_keyboard_reaches_results_filters_and_episodes(shown: Any) -> None:
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    shown.locator("#q0 > summary").focus()
    shown.keyboard.press("Enter")
    assert shown.locator("#e0").is_visible()
    levels = shown.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map((h) => +h.tagName[1])")
    assert all(after - before <= 1 for before, after in pairwise(levels)), "no level is skipped"
    unnamed = "[...document.querySelectorAll('select,input,button')].filter((f) => !f.labels?.length && !f.textContent)"
    assert shown.evaluate(f"{unnamed}.length") == 0


def test_a_passage_that_opens_in_place_is_told_as_a_button(shown: Any) -> None:
    shown.evaluate("document.getElementById('q1').open = true")
    shown.locator("#e1 .h summary").first.click()
    link = shown.locator("#e1 .h").get_by_role("button", name="Title d1")
    for expanded in ("false", "true", "false"):
        assert link.get_attribute("aria-expanded") == expanded
        link.click()


def test_the_space_bar_opens_a_passage_and_closes_it(shown: Any) -> None:
    shown.evaluate("document.getElementById('q1').open = true")
    shown.locator("#e1 .h summary").first.click()
    link = shown.locator("#e1 .h").get_by_role("button", name="Title d1")
    link.focus()
    before = shown.evaluate("scrollY")
    for expanded in ("true", "false"):
        shown.keyboard.press("Space")
        assert link.get_attribute("aria-expanded") == expanded
    assert shown.evaluate("scrollY") == before, "the page does not scroll"


def test_numbers_of_long_lists_are_within_the_page(shown: Any) -> None:
    shown.evaluate("document.querySelector('#list-0-wrong').parentElement.open = true")
    indent = "parseFloat(getComputedStyle(document.querySelector('#list-0-wrong')).paddingLeft)"
    assert shown.evaluate(indent) >= 50, "room for 1000. of 16 pixels"


def test_a_page_of_one_question_skips_no_heading(browser: Any, tmp_path: Path) -> None:
    write_episode(tmp_path / "one.html", "eval", judged(0, 1.0, True, True), {})
    for page in opened(browser, tmp_path / "one.html"):
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map((h) => +h.tagName[1])")
        assert levels == [1, 2, 3, 3, 3, 2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_in_dark(browser: Any, path: Path, scheme: str) -> None:
    for page in opened(browser, path, color_scheme=scheme):
        page.locator("#unfold").click()
        paper = rgb(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for selector in ("p", ".n", "a", ".m.right", ".m.wrong", "caption", ".e h4"):
            ink = rgb(page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color"))
            assert contrast(ink, paper) >= 4.5, selector
        figure = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
        assert contrast(rgb(figure), paper) >= 4.5


def rgb(colour: str) -> list[float]:
    return [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]

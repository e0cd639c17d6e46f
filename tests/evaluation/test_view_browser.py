"""The page in a real browser: filters, folding, links, comparison, hostile text, phones, no script, speed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evaluation.kept_episodes import keep
from evaluation.view_page import render_page, write_episode, write_page
from evaluation.view_run import read_run
from tests.conftest import CHROMIUM
from tests.evaluation.contrast import contrast
from tests.evaluation.view_fakes import GOLD, arm, experiment, judged

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>window.hacked=1;fetch('http://example.invalid/x')</script>"
    "</bdi></p></article></details></section><img src=x onerror='window.hacked=2'>"
    '"><svg onload=window.hacked=3><a href="javascript:window.hacked=4">x</a>{{ 7*7 }} ${stage:x} '
    "</step><answer>x</answer> \u202eright to left \u05e9\u05dc\u05d5\u05dd \U0001f600 \x00\x1b[31m $x^2$ "
)
LONG = "w" * 100_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with two arms on six questions: the first is right on 0, 2, 4, the second on 0, 1, 2."""
    runs = tmp_path_factory.mktemp("runs")
    before = [judged(n, float(n % 2 == 0), True, n % 2 == 0) for n in range(6)]
    after = [judged(n, float(n < 3), True, n < 3, flawed=float(n == 2)) for n in range(6)]
    folder = experiment(runs, {"eval_sft": arm(runs, "eval_sft", before), "eval_rl": arm(runs, "eval_rl", after)})
    write_page(folder / "report.html", [read_run(folder)])
    return folder / "report.html"


@pytest.fixture
def shown(browser: Any, path: Path) -> Iterator[Any]:
    yield from opened(browser, path)


def opened(browser: Any, path: Path, **settings: Any) -> Iterator[Any]:
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | settings)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.told = []
    page.on("request", lambda request: page.told.append(request.url))
    page.on("pageerror", lambda error: page.told.append(f"error {error}"))
    page.on("dialog", lambda dialog: page.told.append("dialog"))
    page.goto(path.as_uri())
    yield page
    context.close()


def visible(page: Any) -> list[str]:
    """The ids of the episodes that the filters leave: e0 to e5 of eval_sft, e6 to e11 of eval_rl."""
    return page.evaluate("[...document.querySelectorAll('#list > :not([hidden]) .e:not([hidden])')].map((e) => e.id)")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]),
        ({"arm": "eval_rl"}, [6, 7, 8, 9, 10, 11]),
        ({"outcome": "wrong"}, [1, 3, 9, 10, 5, 11]),
        ({"arm": "eval_rl", "outcome": "right"}, [6, 7, 8]),
        ({"mistake": "right but flawed"}, [8]),
        ({"hops": "2"}, [1, 7, 4, 10]),
        ({"status": "step_budget", "arm": "eval_sft"}, [1, 3, 5]),
        ({"searching": "too little", "arm": "eval_sft"}, [1, 2, 4, 5]),
        ({"text": "WHO IS 3?"}, [3, 9]),
    ],
)
def test_filters_leave_the_episodes_that_fit(shown: Any, chosen: dict[str, str], expected: list[int]) -> None:
    for name, value in chosen.items():
        field = shown.locator(f"#filters [name={name}]")
        field.fill(value) if name == "text" else field.select_option(label=value)
    assert visible(shown) == [f"e{number}" for number in expected]
    assert f"{len(expected)} episodes of" in shown.locator("#shown").inner_text()
    assert len(shown.told) == 1, "the page itself and nothing else"


def test_two_arms_stand_side_by_side_sorted_by_difference_and_aligned_by_step(shown: Any) -> None:
    shown.locator("#filters [name=arm]").select_option(label="eval_sft")
    shown.locator("#filters [name=against]").select_option(label="eval_rl")
    shown.locator("#filters [name=differ]").check()
    assert visible(shown) == ["e1", "e7", "e4", "e10"]
    shown.locator("#unfold").click()
    shown.evaluate("document.querySelector('#e1 .h').open = true")  # makes a step of one side longer
    one, other = (shown.locator(f"#{id_} .s").nth(1).bounding_box() for id_ in ("e1", "e7"))
    assert one["y"] == other["y"]
    assert one["x"] + one["width"] <= other["x"]
    shown.locator("#filters [name=differ]").uncheck()
    assert visible(shown)[:2] == ["e0", "e6"], "the order comes back"


def test_differences_are_listed_where_a_side_was_left_out_too(browser: Any, tmp_path: Path) -> None:
    """Of three arms, where the first is wrong on every other question, the page has no room for the right answers."""
    rows = {name: [judged(n, float(n % 2 or name != "a"), True, True) for n in range(300)] for name in ("a", "b", "c")}
    folder = experiment(tmp_path, {name: arm(tmp_path, name, each) for name, each in rows.items()})
    (tmp_path / "small.html").write_text(render_page([read_run(folder)], limit=420_000))
    for page in opened(browser, tmp_path / "small.html"):
        page.locator("#filters [name=arm]").select_option(label="a")
        page.locator("#filters [name=against]").select_option(label="c")
        page.locator("#filters [name=differ]").check()
        assert "of 150 questions" in page.locator("#shown").inner_text()
        page.locator("#unfold").click()
        left = page.locator("#q298 .absent")
        assert left.text_content() == "Left out to keep the page small: c right."
        page.locator("#filters [name=arm]").select_option(label="b")
        assert "0 episodes of 0 questions" in page.locator("#shown").inner_text(), "b and c are right everywhere"
        assert page.locator(".absent").count() == 0


def test_a_link_that_was_followed_before_clears_the_filters_again(shown: Any) -> None:
    for _ in range(2):
        shown.locator("#filters [name=outcome]").select_option(label="right")
        shown.evaluate("document.querySelector('#list-0-wrong').parentElement.open = true")
        shown.locator("#list-0-wrong a").first.click()
        assert shown.locator("#e1").is_visible()


def test_a_count_leads_to_its_list_and_the_list_to_its_episodes_even_filtered_ones(shown: Any) -> None:
    shown.locator("#filters [name=outcome]").select_option(label="right")
    shown.locator("td[data-count=wrong] a").first.click()
    entry = shown.locator("#list-0-wrong a").nth(1)
    assert entry.is_visible()
    assert entry.inner_text() == "Question 3?"
    entry.click()
    assert shown.locator("#e3").is_visible()
    assert "Question 3?" in shown.locator("#q3 summary").first.inner_text()


def test_a_passage_unfolds_where_it_was_found(shown: Any) -> None:
    shown.evaluate("document.getElementById('q1').open = true")
    episode = shown.locator("#e1")
    assert not episode.get_by_text("Text of d1.").is_visible()
    episode.locator(".h summary").first.click()
    episode.locator(".h a", has_text="Title d1").click()
    assert episode.get_by_text("Text of d1.").is_visible()
    episode.locator(".h a", has_text="Title d1").click()
    assert episode.get_by_text("Text of d1.").count() == 0


def test_without_script_everything_is_listed_and_links_unfold_what_they_lead_to(browser: Any, path: Path) -> None:
    for page in opened(browser, path, java_script_enabled=False):
        assert not page.locator("#filters").is_visible()
        assert page.locator("#list summary h3").count() == 6
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


def test_hostile_text_is_text(browser: Any, tmp_path: Path) -> None:
    row = judged(0, 0.0, True, False, question=HOSTILE + LONG, prediction=HOSTILE, type=HOSTILE)
    row["answers"] = [HOSTILE]
    row["id"] = HOSTILE
    row["gold"] = GOLD | {"steps": [{"question": HOSTILE, "answer": HOSTILE, "documents": []}]}
    row["steps"][0] |= {"said": HOSTILE + LONG, "kind": HOSTILE, "agent": HOSTILE, "hits": [HOSTILE], "kept": [HOSTILE]}
    folder = experiment(tmp_path, {"eval": arm(tmp_path, "eval", [row])}, question=HOSTILE)
    passages = folder.parents[1] / "store" / "eval-1" / "data" / "passages-toy-dev.jsonl"
    passages.write_text(json.dumps({"id": HOSTILE, "title": HOSTILE, "text": HOSTILE + LONG}) + "\n")
    found = {HOSTILE: {"title": HOSTILE, "text": HOSTILE + LONG}}
    stage = folder.parents[1] / "store" / "eval-1" / "data"
    for update, em in ((0, 0.0), (1, 1.0)):
        point = {"dataset": "toy", "split": "dev", "update": update}
        keep(stage / "validation" / f"{update}.json", [row | {"em": em}], found, **point)
    trained = row | {"shown_as": HOSTILE, "outcome": {HOSTILE: 1.0, "reward": 1.0}}
    keep(stage / "iterations" / "0.json", [trained], found, iteration=0, update=0)
    write_page(folder / "report.html", [read_run(folder)])
    write_episode(folder / "one.html", HOSTILE, row, found)
    for name in ("report.html", "one.html"):
        for page in opened(browser, folder / name):
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            page.evaluate("for (const link of document.querySelectorAll('.h a')) link.click()")
            page.wait_for_timeout(300)
            assert page.evaluate("window.hacked") is None
            assert page.told == [(folder / name).as_uri()]
            assert page.evaluate("document.querySelectorAll('script').length") == 1
            assert page.evaluate("document.querySelectorAll('main img, main a[href^=javascript]').length") == 0
            text = page.evaluate("document.body.textContent")
            assert "<script>window.hacked=1" in text
            assert "{{ 7*7 }}" in text
            assert "more characters)" in text
            assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    assert (folder / "report.html").stat().st_size < 300_000


def test_three_thousand_episodes_are_written_in_ten_seconds_and_opened_in_two(browser: Any, tmp_path: Path) -> None:
    """By processor time, which other work on the machine does not change."""
    rows = [judged(number, float(number % 4 > 0), True, True) for number in range(1500)]
    for row in rows:
        row["steps"] = [dict(row["steps"][0], said="What is asked of the passage is this. " * 4)] * 4 + row["steps"][1:]
    folder = experiment(tmp_path, {name: arm(tmp_path, name, rows) for name in ("eval_a", "eval_b")})
    start = time.process_time()
    write_page(folder / "report.html", [read_run(folder)])
    assert time.process_time() - start < 10
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(120_000)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto((folder / "report.html").as_uri())
    measured = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    assert measured["Nodes"] > 10_000
    assert 0 < measured["TaskDuration"] < 2

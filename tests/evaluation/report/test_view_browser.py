"""The page in a real browser: filters, folding, links, comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluation.report.view_page import render_page
from evaluation.report.view_run import read_run
from tests.evaluation.report.browsing import opened
from tests.evaluation.report.view_fakes import arm, experiment, judged

pytestmark = pytest.mark.browser


def visible(page: Any) -> list[str]:
    """The ids of the episodes that the filters leave: e0 to e5 of eval_sft, e6 to e11 of eval_rl."""
    return page.evaluate("[...document.querySelectorAll('#list > :not([hidden]) .e:not([hidden])')].map((e) => e.id)")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]),
        ({"arm": "eval_rl"}, [6, 7, 8, 9, 10, 11]),
        ({"outcome": "wrong"}, [1, 3, 9, 10, 11]),
        ({"arm": "eval_rl", "outcome": "right"}, [6, 7, 8]),
        ({"mistake": "right but flawed"}, [8]),
        ({"hops": "2"}, [1, 7, 4, 10]),
        ({"status": "step_budget", "arm": "eval_sft"}, [1, 3]),
        ({"searching": "too little", "arm": "eval_sft"}, [1, 4, 5]),
        ({"searching": "too much"}, [6, 7, 2]),
        ({"searching": "too little", "arm": "eval_rl"}, [7, 8, 10, 11]),
        ({"outcome": "failed"}, [5]),
        ({"mistake": "failed"}, [5]),
        ({"text": "WHO IS 3?"}, [3, 9]),
        ({"text": "who wrote it? ann"}, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]),
        ({"text": "accepted: x / y 4"}, [4, 10]),
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
    (tmp_path / "small.html").write_text(render_page([read_run(folder)], limit=450_000))
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


def test_only_two_arms_can_be_told_to_differ_and_what_failed_is_not_compared(shown: Any) -> None:
    differ = shown.locator("#filters [name=differ]")
    assert differ.is_disabled()
    shown.locator("#filters [name=arm]").select_option(label="eval_sft")
    shown.locator("#filters [name=against]").select_option(label="eval_sft")
    assert differ.is_disabled()
    shown.locator("#filters [name=against]").select_option(label="eval_rl")
    differ.check()
    assert visible(shown) == ["e1", "e7", "e4", "e10"], "e5 failed"


def test_an_arm_that_failed_and_has_no_room_is_said_to(browser: Any, tmp_path: Path) -> None:
    """The page has room for what differs, of a and b; c, which is compared with neither, failed everywhere."""
    rows = {name: [judged(n, float(name == "b"), True, True) for n in range(60)] for name in ("a", "b", "c")}
    rows["c"] = [row | {"em": None, "f1": None, "status": "error"} for row in rows["c"][:-1]] + rows["b"][-1:]
    folder = experiment(tmp_path, {name: arm(tmp_path, name, each) for name, each in rows.items()})
    (tmp_path / "small.html").write_text(render_page([read_run(folder)], limit=150_000))
    for page in opened(browser, tmp_path / "small.html"):
        page.locator("#filters [name=arm]").select_option(label="a")
        page.locator("#filters [name=against]").select_option(label="c")
        page.locator("#unfold").click()
        assert page.locator("#q30 .absent").text_content() == "Left out to keep the page small: c failed."


def test_a_link_that_was_followed_before_clears_the_filters_again(shown: Any) -> None:
    for _ in range(2):
        shown.locator("#filters [name=outcome]").select_option(label="right")
        shown.evaluate("document.querySelector('#list-0-wrong').parentElement.open = true")
        shown.locator("#list-0-wrong a").first.click()
        shown.locator("#e1").wait_for(state="visible")


def test_a_count_leads_to_its_list_and_the_list_to_its_episodes_even_filtered_ones(shown: Any) -> None:
    shown.locator("#filters [name=outcome]").select_option(label="right")
    shown.locator("td[data-count=wrong] a").first.click()
    entry = shown.locator("#list-0-wrong a").nth(1)
    assert entry.is_visible()
    assert entry.inner_text() == "Question 3?"
    entry.click()
    shown.locator("#e3").wait_for(state="visible")  # the address changes before the page hears of it
    shown.locator("#q3 summary", has_text="Question 3?").first.wait_for(state="visible")


def test_a_passage_unfolds_where_it_was_found(shown: Any) -> None:
    shown.evaluate("document.getElementById('q1').open = true")
    episode = shown.locator("#e1")
    assert not episode.get_by_text("Text of d1.").is_visible()
    episode.locator(".h summary").first.click()
    episode.locator(".h a", has_text="Title d1").click()
    assert episode.get_by_text("Text of d1.").is_visible()
    episode.locator(".h a", has_text="Title d1").click()
    assert episode.get_by_text("Text of d1.").count() == 0

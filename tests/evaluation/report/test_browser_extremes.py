"""The page in a real browser where what it holds is hostile, or much."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from evaluation.kept_episodes import keep
from evaluation.report.page import write_episode, write_page
from evaluation.report.run import read_run
from tests.evaluation.report.browsing import opened
from tests.evaluation.report.fakes import GOLD, arm, experiment, judged
from tests.evaluation.report.stages import every_stage

pytestmark = pytest.mark.browser
HOSTILE = (
    "<script>window.hacked=1;fetch('http://example.invalid/x')</script>"
    "</bdi></p></article></details></section><img src=x onerror='window.hacked=2'>"
    '"><svg onload=window.hacked=3><a href="javascript:window.hacked=4">x</a>{{ 7*7 }} ${stage:x} '
    "</step><answer>x</answer> \u202eright to left \u05e9\u05dc\u05d5\u05dd \U0001f600 \x00\x1b[31m $x^2$ <!-- "
)
LONG = "w" * 100_000


def test_hostile_text_is_text(browser: Any, tmp_path: Path) -> None:
    row = judged(0, 0.0, True, False, question=HOSTILE + LONG, prediction=HOSTILE, type=HOSTILE)
    row |= {"answers": [HOSTILE], "id": HOSTILE, "status": HOSTILE}
    row["gold"] = GOLD | {"steps": [{"question": HOSTILE, "answer": HOSTILE, "documents": []}]}
    row["steps"][0] |= {"said": HOSTILE + LONG, "kind": HOSTILE, "agent": HOSTILE, "hits": [HOSTILE], "kept": [HOSTILE]}
    row["steps"][0]["truth"] = False
    others = every_stage(tmp_path, text=HOSTILE, reason=HOSTILE, tag=f"eval/{HOSTILE}/em")
    others["failed"] = tmp_path / "store" / "failed-1"
    others["failed"].mkdir()
    (others["failed"] / "failed.txt").write_text(HOSTILE + LONG)
    group = {"dataset": "toy", "split": "dev", "n": 1, "em": 0.0, "group": f"type={HOSTILE}"}
    evaluated = arm(tmp_path, "eval", [row], groups=[group], notes={HOSTILE: {HOSTILE: [HOSTILE]}})
    folder = experiment(tmp_path, others | {"eval": evaluated}, question=HOSTILE)
    passage = {"id": HOSTILE, "title": HOSTILE, "text": HOSTILE + LONG}
    (evaluated / "data" / "passages-toy-dev.jsonl").write_text(json.dumps(passage) + "\n")
    found = {HOSTILE: {"title": HOSTILE, "text": HOSTILE + LONG}}
    for update, em in ((0, 0.0), (1, 1.0)):
        path = evaluated / "data" / "validation" / f"{update}.json"
        keep(path, [row | {"em": em}], found, dataset="toy", split="dev", update=update)
    trained = row | {"shown_as": HOSTILE, "outcome": {HOSTILE: 1.0, "reward": 1.0}}
    keep(evaluated / "data" / "iterations" / "0.json", [trained], found, iteration=0, update=0)
    write_page(folder / "report.html", [read_run(folder)])
    write_episode(folder / "one.html", HOSTILE, row, found)
    for name in ("report.html", "one.html"):
        for page in opened(browser, folder / name):
            for _ in range(4):  # what is drawn when it is unfolded may be unfolded too
                page.evaluate("for (const one of document.querySelectorAll('details:not([open])')) one.open = true")
                page.wait_for_timeout(100)
            assert page.evaluate("window.hacked") is None
            assert page.told == [(folder / name).as_uri()]
            assert page.evaluate("document.querySelectorAll('script').length") == 2
            assert page.evaluate("document.querySelectorAll('main img, main a[href^=javascript]').length") == 0
            text = page.evaluate("document.body.innerText")
            assert text.count("<script>window.hacked=1") > 4
            assert "{{ 7*7 }}" in text
            assert "more characters)" in text
            assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    assert (folder / "report.html").stat().st_size < 300_000


def test_three_thousand_episodes_are_written_in_ten_seconds_and_opened_in_two(browser: Any, tmp_path: Path) -> None:
    """By processor time, which other work on the machine does not change."""
    rows = [judged(number, float(number % 4 > 0), True, True) for number in range(1500)]
    for row in rows:
        row["valid_steps"] = 0.5  # a mistake in each: none is left out
        row["steps"] = [dict(row["steps"][0], said="What is asked of the passage is this. " * 4)] * 4 + row["steps"][1:]
    stages = every_stage(tmp_path) | {name: arm(tmp_path, name, rows) for name in ("eval_a", "eval_b")}
    folder = experiment(tmp_path, stages)
    start = time.process_time()
    write_page(folder / "report.html", [read_run(folder)])
    assert time.process_time() - start < 10
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(120_000)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto((folder / "report.html").as_uri())
    assert page.locator("#shown").text_content() == "3000 episodes of 1500 questions"
    measured = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    assert 0 < measured["TaskDuration"] < 2

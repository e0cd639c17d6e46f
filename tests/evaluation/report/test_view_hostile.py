"""Text of others is text: nothing in it is executed or asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.kept_episodes import keep
from evaluation.report.view_page import write_episode, write_page
from evaluation.report.view_run import read_run
from tests.evaluation.report.browsing import opened
from tests.evaluation.report.view_fakes import GOLD, arm, experiment, judged
from tests.evaluation.report.view_stages import every_stage

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>window.hacked=1;fetch('http://example.invalid/x')</script>"
    "</bdi></p></article></details></section><img src=x onerror='window.hacked=2'>"
    '"><svg onload=window.hacked=3><a href="javascript:window.hacked=4">x</a>{{ 7*7 }} ${stage:x} '
    "</step><answer>x</answer> \u202eright to left \u05e9\u05dc\u05d5\u05dd \U0001f600 \x00\x1b[31m $x^2$ "
)
LONG = "w" * 100_000


def test_hostile_text_is_text(browser: Any, tmp_path: Path) -> None:
    row = judged(0, 0.0, True, False, question=HOSTILE + LONG, prediction=HOSTILE, type=HOSTILE)
    row["answers"] = [HOSTILE]
    row["id"] = HOSTILE
    row["gold"] = GOLD | {"steps": [{"question": HOSTILE, "answer": HOSTILE, "documents": []}]}
    row["steps"][0] |= {"said": HOSTILE + LONG, "kind": HOSTILE, "agent": HOSTILE, "hits": [HOSTILE], "kept": [HOSTILE]}
    others = every_stage(tmp_path, text=HOSTILE, reason=HOSTILE, tag=f"eval/{HOSTILE}/em")
    others["failed"] = tmp_path / "store" / "failed-1"
    others["failed"].mkdir()
    (others["failed"] / "failed.txt").write_text(HOSTILE + LONG)
    folder = experiment(tmp_path, others | {"eval": arm(tmp_path, "eval", [row])}, question=HOSTILE)
    passages = tmp_path / "store" / "eval-1" / "data" / "passages-toy-dev.jsonl"
    passages.write_text(json.dumps({"id": HOSTILE, "title": HOSTILE, "text": HOSTILE + LONG}) + "\n")
    found = {HOSTILE: {"title": HOSTILE, "text": HOSTILE + LONG}}
    stage = tmp_path / "store" / "eval-1" / "data"
    for update, em in ((0, 0.0), (1, 1.0)):
        point = {"dataset": "toy", "split": "dev", "update": update}
        keep(stage / "validation" / f"{update}.json", [row | {"em": em}], found, **point)
    trained = row | {"shown_as": HOSTILE, "outcome": {HOSTILE: 1.0, "reward": 1.0}}
    keep(stage / "iterations" / "0.json", [trained], found, iteration=0, update=0)
    write_page(folder / "report.html", [read_run(folder)])
    write_episode(folder / "one.html", HOSTILE, row, found)
    whole = (folder / "report.html").read_text()
    assert "judged better than" in whole
    assert 'aria-label="By update: eval/' in whole
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

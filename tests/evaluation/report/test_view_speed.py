"""How long a large page takes to write and to open."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from evaluation.report.view_page import write_page
from evaluation.report.view_run import read_run
from tests.evaluation.fake import step_ranking
from tests.evaluation.report.view_fakes import arm, experiment, judged
from tests.evaluation.report.view_stages import every_stage, fitted

pytestmark = pytest.mark.browser
POINTS = [number / 600 for number in range(600)]  # of a curve


def test_three_thousand_episodes_are_written_in_ten_seconds_and_opened_in_two(browser: Any, tmp_path: Path) -> None:
    """By processor time, which other work on the machine does not change."""
    rows = [judged(number, float(number % 4 > 0), True, True) for number in range(1500)]
    for row in rows:
        row["steps"] = [dict(row["steps"][0], said="What is asked of the passage is this. " * 4)] * 4 + row["steps"][1:]
    stages = every_stage(tmp_path) | {name: arm(tmp_path, name, rows) for name in ("eval_a", "eval_b")}
    stages |= {name: fitted(tmp_path, name, POINTS) for name in ("sft", "dpo")}
    ranked = step_ranking(tmp_path / "store" / "rank-2", right=300, wrong=100)
    folder = experiment(tmp_path, stages | {"rank": ranked})
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

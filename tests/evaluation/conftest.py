"""What the tests of pages in a browser share: Chromium, and the page of a run with two arms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluation.kept_episodes import keep
from evaluation.report.page import write_page
from evaluation.report.run import read_run
from tests.conftest import CHROMIUM
from tests.evaluation.report.browsing import opened
from tests.evaluation.report.fakes import arm, experiment, judged
from tests.evaluation.report.stages import every_stage


@pytest.fixture(scope="module")  # longer, its event loop would be in the way of others
def browser() -> Iterator[Any]:
    """Chromium, headless."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with two arms on six questions: the first is right on 0, 2, 4, the second on 0, 1, 2.

    The first fails on 5, and searches too much on 2; the second on 0 and 1, on 1 too little as well.
    """
    runs = tmp_path_factory.mktemp("runs")
    before = [judged(n, float(n % 2 == 0), True, n % 2 == 0) for n in range(6)]
    before[2] |= {"late": 1.0, "premature": 0.0}
    before[4]["answers"] = ["x", "y 4"]
    before[5] |= {"em": None, "f1": None, "status": "error"}
    after = [judged(n, float(n < 3), True, n < 3, flawed=float(n == 2)) for n in range(6)]
    for number in (0, 1):
        after[number]["late"] = 1.0
    after[4]["answers"] = before[4]["answers"]
    folder = experiment(runs, {"eval_sft": arm(runs, "eval_sft", before), "eval_rl": arm(runs, "eval_rl", after)})
    write_page(folder / "report.html", [read_run(folder)])
    return folder / "report.html"


@pytest.fixture
def shown(browser: Any, path: Path) -> Iterator[Any]:
    """That page, opened anew."""
    yield from opened(browser, path)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with every kind of stage."""
    runs = tmp_path_factory.mktemp("figures")
    groups = [
        {"dataset": "toy", "split": "dev", "n": 1, "em": em, "group": f"hops={h}"} for h, em in ((1, 1.0), (2, 0.5))
    ]
    stages = every_stage(runs) | {"eval": arm(runs, "eval", [judged(0, 1.0, True, True)], groups=groups)}
    data = stages["rl"] / "data"
    for update, em in ((0, 0.0), (4, 1.0), (8, 1.0)):
        row = judged(0, em, True)
        keep(data / "validation" / f"{update}.json", [row], {}, dataset="toy", split="dev", update=update)
    trained = [
        judged(0, em, True) | {"shown_as": name, "outcome": {"reward": em}} for name, em in (("best", 1), ("worst", 0))
    ]
    for place, row in enumerate(trained):
        row["steps"] = [{**step, "uid": f"{number * place}/{number}"} for number, step in enumerate(row["steps"])]
    keep(data / "iterations" / "0.json", trained, {}, iteration=3, update=4)
    folder = experiment(runs, stages)
    write_page(folder / "report.html", [read_run(folder)])
    return folder / "report.html"

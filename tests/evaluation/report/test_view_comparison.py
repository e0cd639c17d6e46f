"""The page of several runs says of everything whose it is."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from evaluation.kept_episodes import keep
from tests.evaluation.report.view_fakes import Page, arm, experiment, judged, page
from tests.evaluation.report.view_stages import searched, tree

ROWS = [judged(number, float(number), True, True) for number in range(2)]


@pytest.fixture
def shown(tmp_path: Path) -> Page:
    """Two runs, each with an evaluation, a search, and a fit that kept a curve and an iteration."""
    folders = []
    for name in ("base", "new"):
        runs = tmp_path / name
        stages = {
            "eval": arm(runs, "eval", ROWS),
            "search": searched(runs / "store", tree()),
            "rl": runs / "store/rl-1",
        }
        data = stages["rl"] / "data"
        keep(data / "validation" / "0.json", ROWS, {}, dataset="toy", split="dev", update=0)
        rewarded = ROWS[0] | {"shown_as": "best of 2", "outcome": {"reward": 1.0}}
        keep(data / "iterations" / "0.json", [rewarded], {}, iteration=0, update=0)
        folders.append(experiment(runs, stages, name=name))
    return page(*folders)


def test_trees_and_training_name_their_run(shown: Page) -> None:
    for name in ("base/seed0", "new/seed0"):
        assert f"<h3>{name}:search</h3>" in shown.html
        assert f"<h3>{name}:rl: iterations</h3>" in shown.html
        assert f"<h3>{name}:rl: the same questions of toy/dev along its curve</h3>" in shown.html


def test_no_two_headings_captions_or_regions_are_the_same(shown: Page) -> None:
    outside = shown.html.partition('<div id="list">')[0] + shown.html.partition('id="trees"')[2]
    for pattern in (r"<h3>(.*?)</h3>", r"<caption>(.*?)</caption>", r'role="region" aria-label="(.*?)"'):
        found = Counter(re.findall(pattern, outside))
        assert len(found) > 4
        assert found.most_common(1)[0][1] == 1, found.most_common(1)

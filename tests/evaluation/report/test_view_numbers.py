"""The numbers of the page are those of the files, every one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datamodules.records import read_rows
from evaluation.results import read_json
from evaluation.statistics import paired_bootstrap
from tests.evaluation.report.view_fakes import Page, arm, experiment, judged, page
from tests.evaluation.report.view_stages import two_policies

Row = dict[str, Any]
BEFORE = [judged(number, float(number % 2), True, number % 3 > 0) for number in range(8)]
BEFORE[1] |= {"flawed": 1.0, "valid_steps": 0.5}
BEFORE[2] |= {"recall": 0.5, "truncations": {"observation": 1}}
BEFORE[3] |= {"unresolved": 1.0, "flawed": 1.0}
BEFORE[4] |= {"em": None, "f1": None, "status": "error"}
BEFORE[6] |= {"valid_episodes": 0.0, "f1": 0.5}
AFTER = [judged(number, float(number > 0), True, True) for number in range(8)]
FILES = {
    "em": (0.5714, 0.25, 0.875),
    "f1": (0.6429, 0.3, 0.9),
    "cover": (0.75, None, None),
    "flawed": (0.25, None, None),
    "unresolved": (0.125, None, None),
    "valid_steps": (0.9375, None, None),
    "recall": (0.875, None, None),
}
HEADINGS = ("EM", "F1", "cover", "flawed", "unresolved", "valid steps", "recall")
COUNTED: dict[str, Callable[[Row], Any]] = {
    "wrong": lambda row: row["em"] == 0,
    "wrong, a passage missing": lambda row: row["em"] == 0 and row.get("recall", 1) < 1,
    "right but flawed": lambda row: row["em"] == 1 and row.get("flawed"),
    "right but unresolved": lambda row: row["em"] == 1 and row.get("unresolved"),
    "out of format": lambda row: row.get("valid_steps", 1) < 1 or row.get("valid_episodes", 1) < 1,
    "cut": lambda row: row["status"] == "step_budget" or "truncations" in row,
    "failed": lambda row: row["status"] == "error",
}

NEEDED = {  # without which there is nothing to count
    "wrong, a passage missing": {"recall"},
    "right but flawed": {"flawed"},
    "right but unresolved": {"unresolved"},
    "out of format": {"valid_steps", "valid_episodes"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    measured = {"dataset": "toy", "split": "dev", "n": 8, "searches": 2.25, "seconds": 12.4}
    for name, (value, low, high) in FILES.items():
        measured |= {name: value} | ({} if low is None else {f"{name}_low": low, f"{name}_high": high})
    stages = {
        "eval_sft": arm(runs, "eval_sft", BEFORE, rows=[measured]),
        "eval_rl": arm(runs, "eval_rl", AFTER),
    }
    folder = experiment(runs, stages)
    two_policies(folder)
    return folder


@pytest.fixture(scope="module")
def shown(folder: Path) -> Page:
    return page(folder)


def predictions(folder: Path, stage: str) -> list[Row]:
    return list(read_rows(folder.parents[1] / "store" / f"{stage}-1" / "data" / "predictions-toy-dev.jsonl", None))


def test_every_cell_of_the_results_is_the_files(folder: Path, shown: Page) -> None:
    header, first, _ = shown.tables["Results: toy/dev"]
    (row,) = read_json(folder.parents[1] / "store" / "eval_sft-1" / "data" / "results.json")["rows"]
    expected = ["eval_sft", str(row["n"])]
    for name in FILES:
        bounds = [f"{100 * row[key]:.1f}" for end in ("low", "high") if (key := f"{name}_{end}") in row]
        expected.append(f"{100 * row[name]:.1f}" + (f" [{', '.join(bounds)}]" if bounds else ""))
    assert header == ["stage", "n", *HEADINGS, "searches", "seconds"]
    assert first == [*expected, f"{row['searches']:.2f}", f"{row['seconds']:.0f}"]


@pytest.mark.parametrize(("of", "stage"), [(0, "eval_sft"), (1, "eval_rl")])
def test_every_count_is_that_of_the_predictions_and_leads_to_just_those_episodes(
    folder: Path, shown: Page, of: int, stage: str
) -> None:
    rows = predictions(folder, stage)
    cells = dict(zip(shown.counts()["arm"], shown.counts()[stage], strict=True))
    assert list(cells) == ["dataset", "n", *COUNTED]
    assert cells.pop("dataset") == "toy/dev"
    assert cells.pop("n") == str(len(rows))
    lists = [name for name in shown.ids if name.startswith(f"list-{of}-") and "untrue" not in name]
    for heading, fits in COUNTED.items():
        members = [row["question"] for row in rows if fits(row)]
        judged = heading not in NEEDED or any(NEEDED[heading] & row.keys() for row in rows)
        assert cells[heading] == (str(len(members)) if judged else "–"), heading
        if members:
            text = shown.text[lists.pop(0)]
            assert [row["question"] for row in rows if row["question"] in text] == members, heading
    assert not lists


def test_two_arms_differ_by_what_the_predictions_say(folder: Path, shown: Page) -> None:
    both = zip(predictions(folder, "eval_sft"), predictions(folder, "eval_rl"), strict=True)
    changed = {
        one["question"]: [f"{100 * (other[name] - one[name]):+.{digits}f}" for name, digits in (("em", 0), ("f1", 1))]
        for one, other in both
        if one["em"] is not None and (one["em"], one["f1"]) != (other["em"], other["f1"])
    }
    _, *lines = shown.tables["Where they differ, the largest difference first"]
    assert {line[0]: line[1:3] for line in lines} == changed
    assert list(changed) == ["Question 2?", "Question 6?"], "4 failed, 0 is wrong in both"
    assert "2 better with the second, 0 worse" in shown.html


def test_what_a_stage_changed_is_the_paired_difference(folder: Path, shown: Page) -> None:
    header, _, after = shown.tables["Change by stage: exp/seed0"]
    before = {row["id"]: row for row in predictions(folder, "eval_sft")}
    for heading, name in (("EM", "em"), ("F1", "f1")):
        pairs = [(row[name], before[row["id"]][name]) for row in predictions(folder, "eval_rl")]
        new, old = zip(*(pair for pair in pairs if None not in pair), strict=True)
        test = paired_bootstrap(new, old, seed=0)
        gain = (sum(new) - sum(old)) / len(new)
        cell = f"{100 * gain:+.1f} [{100 * test.low:+.1f}, {100 * test.high:+.1f}]"
        assert after[header.index(heading)] == cell

"""What is counted, compared and shown of arms: its numbers are those of the files, every one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datamodules.records import read_rows
from evaluation.report.arms import by_question, compared, on_page
from evaluation.report.run import Answers
from evaluation.results import read_json
from evaluation.statistics import paired_bootstrap
from tests.evaluation.fake import answered, evaluation
from tests.evaluation.report.fakes import Page, arm, collected, experiment, judged, page
from tests.evaluation.report.stages import two_policies

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
    "missed": lambda row: row["em"] == 0 and row.get("recall", 1) < 1,
    "flawed": lambda row: row["em"] == 1 and row.get("flawed"),
    "unresolved": lambda row: row["em"] == 1 and row.get("unresolved"),
    "format": lambda row: row.get("valid_steps", 1) < 1 or row.get("valid_episodes", 1) < 1,
    "cut": lambda row: row["status"] == "step_budget" or "truncations" in row,
    "failed": lambda row: row["status"] == "error",
}

NEEDED = {  # without which there is nothing to count
    "missed": {"recall"},
    "flawed": {"flawed"},
    "unresolved": {"unresolved"},
    "format": {"valid_steps", "valid_episodes"},
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


@pytest.mark.parametrize("stage", ["eval_sft", "eval_rl"])
def test_every_count_is_that_of_the_predictions_and_all_of_its_episodes_are_on_the_page(
    folder: Path, shown: Page, stage: str
) -> None:
    rows, told = predictions(folder, stage), shown.counts()[stage]
    assert (told["dataset"], told["n"], [*told["mistakes"]]) == ("toy/dev", len(rows), [*COUNTED])
    for name, fits in COUNTED.items():
        members = [row["question"] for row in rows if fits(row)]
        judged = name not in NEEDED or any(NEEDED[name] & row.keys() for row in rows)
        assert told["mistakes"][name] == (len(members) if judged else None), name
        assert listed(shown.data, stage, lambda one, name=name: name in one["mistakes"]) == members, name
    for kind, count in told["untrue"].items():
        assert len(listed(shown.data, stage, lambda one, kind=kind: one["untrue"] == kind)) == count
    assert sum(told["untrue"].values()) == sum(bool({"wrong", "flawed"} & {*m}) for m in mistakes_of(shown, stage))


def listed(data: Row, arm: str, fits: Callable[[Row], bool]) -> list[str]:
    """The questions of an arm's episodes on the page that a filter leaves."""
    episodes = [(each["text"], one) for each in data["questions"] for one in each["episodes"] if one["arm"] == arm]
    return [text for text, one in episodes if fits(one)]


def mistakes_of(shown: Page, arm: str) -> list[list[str]]:
    return [one["mistakes"] for each in shown.data["questions"] for one in each["episodes"] if one["arm"] == arm]


def test_two_arms_differ_by_what_the_predictions_say(folder: Path, shown: Page) -> None:
    both = zip(predictions(folder, "eval_sft"), predictions(folder, "eval_rl"), strict=True)
    changed = {
        one["question"]: [f"{100 * (other[name] - one[name]):+.{digits}f}" for name, digits in (("em", 0), ("f1", 1))]
        for one, other in both
        if one["em"] is not None and (one["em"], one["f1"]) != (other["em"], other["f1"])
    }
    pair = shown.data["pair"]
    assert (pair["first"], pair["second"], pair["better"], pair["worse"]) == ("eval_sft", "eval_rl", 2, 0)
    assert {row[1]: row[2:4] for row in pair["rows"]} == changed
    assert list(changed) == ["Question 2?", "Question 6?"], "4 failed, 0 is wrong in both"
    assert [shown.data["questions"][row[0]]["text"] for row in pair["rows"]] == [row[1] for row in pair["rows"]]


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


def test_what_tells_nothing_is_left_out_beyond_a_count_and_the_rest_never_with_all_arms_of_its_questions(
    tmp_path: Path,
) -> None:
    """A first arm is wrong on every second question of 400, a second is right and out of format on question 399."""
    first = [judged(number, float(number % 2), True, True) for number in range(400)]
    second = [judged(number, 1.0, True, True) for number in range(400)]
    second[399]["valid_steps"] = 0.5
    data = collected(experiment(tmp_path, {"a": arm(tmp_path, "a", first), "b": arm(tmp_path, "b", second)}))
    texts = [each["text"] for each in data["questions"]]
    right = [number for number in range(400) if number % 2][:100]
    assert texts == [f"Question {number}?" for number in sorted({*range(0, 400, 2), *right, 399})]
    assert all([one["arm"] for one in each["episodes"]] == ["a", "b"] for each in data["questions"])
    assert (data["shown"], data["episodes"]) == (602, 800)


def answers(*f1: float, arm: str = "a") -> Answers:
    """An arm whose answers are all right, some with more words than the accepted answer."""
    return Answers(arm, "toy/dev", [judged(place, 1.0) | {"f1": each} for place, each in enumerate(f1)], {})


def test_a_question_that_one_arm_answered_better_than_another_is_on_the_page() -> None:
    arms = [answers(*[1.0] * 102), answers(*[1.0] * 101, 0.5, arm="b")]
    kept = on_page(by_question(arms))
    assert len(kept) == 101
    pair = compared([("a", "b")], kept, arms)
    assert pair is not None
    assert pair["rows"] == [(100, "Question 101?", "+0", "-50.0", "x", "x")]


def test_differences_of_one_size_take_turns_and_those_beyond_the_table_are_counted(tmp_path: Path) -> None:
    before = [judged(number, float(number >= 44), True) for number in range(50)]
    after = [judged(number, float(number < 44), True) for number in range(50)]
    data = collected(experiment(tmp_path, {"a": arm(tmp_path, "a", before), "b": arm(tmp_path, "b", after)}))
    pair = data["pair"]
    assert [row[2] for row in pair["rows"][:5]] == ["+100", "-100", "+100", "-100", "+100"]
    assert (len(pair["rows"]), pair["more"], pair["better"], pair["worse"]) == (40, 10, 44, 6)


def test_the_same_id_in_two_worlds_is_not_the_same_question() -> None:
    arms = [
        Answers("a", "toy/dev", [judged(0, 1)], {}),
        Answers("b", "toy/dev", [judged(0, 0, question="Another?")], {}),
    ]
    assert [each.rows[0][1]["question"] for each in by_question(arms)] == ["Question 0?", "Another?"]


def test_the_same_seed_of_two_experiments_is_compared_and_not_two_seeds(tmp_path: Path) -> None:
    folders = [
        experiment(tmp_path, {"eval": arm(tmp_path, f"eval_{name}{seed}", rows)}, name=name, seed=seed)
        for name, rows in (("base", BEFORE), ("new", AFTER))
        for seed in (0, 1)
    ]
    pair = collected(*folders)["pair"]
    assert (pair["first"], pair["second"]) == ("base/seed0:eval", "new/seed0:eval")


def test_arms_that_do_equally_well_are_not_compared(tmp_path: Path) -> None:
    assert collected(experiment(tmp_path, {name: arm(tmp_path, name, BEFORE) for name in ("a", "b")}))["pair"] is None


def test_without_truth_and_passages_nothing_is_counted_of_them(tmp_path: Path) -> None:
    stages = {"eval": evaluation(tmp_path / "store" / "eval-1", [answered(0, 1), answered(1, 0)])}
    shown = page(experiment(tmp_path, stages))
    told = shown.counts()["eval"]
    assert told["untrue"] is None
    assert told["mistakes"] == {"wrong": 1, "cut": 1, "failed": 0} | dict.fromkeys(NEEDED)
    steps = shown.data["questions"][1]["episodes"][0]["steps"]
    assert steps[0]["chips"][1] == ["true –", "", 1.0]
    assert steps[0]["hits"][0] == ["d1", None, ""], "a passage without a text is shown by its id"

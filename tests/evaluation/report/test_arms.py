"""What is counted, compared and shown of arms: its numbers are those of the files, every one of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from datamodules.records import read_rows
from evaluation.report.arms import by_question, compared, on_page
from evaluation.report.run import Answers
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
COUNTED = {  # by arm: its mistakes, None where no row would tell, and the wrong and flawed by their first untrue step
    "eval_sft": (
        {"wrong": 3, "missed": 1, "flawed": 2, "unresolved": 1, "format": 2, "cut": 3, "failed": 1},
        {"answer": 3, "no untrue step": 2},
    ),
    "eval_rl": (
        {"wrong": 1, "missed": None, "flawed": None, "unresolved": None, "format": None, "cut": 1, "failed": 0},
        {"no untrue step": 1},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    stages = {"eval_sft": arm(runs, "eval_sft", BEFORE), "eval_rl": arm(runs, "eval_rl", AFTER)}
    folder = experiment(runs, stages)
    two_policies(folder)
    return folder


@pytest.fixture(scope="module")
def shown(folder: Path) -> Page:
    return page(folder)


def predictions(folder: Path, stage: str) -> list[Row]:
    return list(read_rows(folder.parents[1] / "store" / f"{stage}-1" / "data" / "predictions-toy-dev.jsonl", None))


@pytest.mark.parametrize("stage", ["eval_sft", "eval_rl"])
def test_every_count_is_that_of_the_predictions_and_all_of_its_episodes_are_on_the_page(
    shown: Page, stage: str
) -> None:
    told, (mistakes, untrue) = shown.counts()[stage], COUNTED[stage]
    assert (told["dataset"], told["n"], told["mistakes"], told["untrue"]) == ("toy/dev", 8, mistakes, untrue)
    episodes = [one for each in shown.data["questions"] for one in each["episodes"] if one["arm"] == stage]
    assert Counter(name for one in episodes for name in one["mistakes"]) == Counter(mistakes_made(mistakes))
    assert Counter(one["untrue"] for one in episodes if one["untrue"]) == Counter(untrue)


def mistakes_made(counts: dict[str, int | None]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


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
    assert told["mistakes"] == COUNTED["eval_rl"][0]
    steps = shown.data["questions"][1]["episodes"][0]["steps"]
    assert steps[0]["chips"][1] == ["true –", "", 1.0]
    assert steps[0]["hits"][0] == ["d1", None, ""], "a passage without a text is shown by its id"

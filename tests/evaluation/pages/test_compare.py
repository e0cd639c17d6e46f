from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from common.errors import DataError
from evaluation.pages.compare import compare, main
from evaluation.report.report import write
from evaluation.results import Arm, find_arms
from tests.evaluation.fake import answered, evaluation, run


def cells(text: str, arm: str, table: int = 0) -> list[str]:
    """The cells of an arm's line in a table: of figures, then of differences."""
    line = [line for line in text.splitlines() if line.startswith(f"| {arm} ")][table]
    return [cell.strip() for cell in line.strip("|").split("|")]


def arms(runs: Path, *names: str) -> list[Arm]:
    return [arm for name in names for arm in find_arms(str(runs / name))]


def test_a_difference_is_paired_by_question_with_interval_and_test(tmp_path: Path) -> None:
    run(tmp_path, "base", [1, 0] * 20)
    run(tmp_path, "better", [1, 1] * 20)
    text = compare(arms(tmp_path, "base", "better"))
    assert cells(text, "better:eval") == ["better:eval", "0", "40", "100.0 [100.0, 100.0]"]
    (difference, *tests) = cells(text, "better:eval", 1)[2:]
    low, high = map(float, re.fullmatch(r"\+50\.0 \[\+([\d.]+), \+([\d.]+)\]", difference).groups())
    assert 30 < low < 40 < 60 < high < 70
    assert tests == ["<0.001", "<0.001", "–", "–", "+50.0"]
    with pytest.raises(IndexError):
        cells(text, "base:eval", 1)


def test_pairs_follow_the_question_and_not_its_place(tmp_path: Path) -> None:
    one = [answered(i, i % 2) for i in range(10)]
    for name, predictions in {"one": one, "turned": one[::-1]}.items():
        artifact = evaluation(tmp_path / "store" / name, predictions)
        write(tmp_path, name, 0, {"eval": artifact})
    assert cells(compare(arms(tmp_path, "one", "turned")), "turned:eval", 1)[2:4] == ["+0.0 [+0.0, +0.0]", "1.000"]


def test_seeds_are_averaged_per_question(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 1, 0, 0], seed=0)
    run(tmp_path, "exp", [1, 1, 1, 1], seed=1)
    run(tmp_path, "exp", [0, 0, 0, 0], seed=2)
    # questions score 2/3, 2/3, 1/3, 1/3
    assert cells(compare(arms(tmp_path, "exp")), "exp:eval")[1:] == ["0, 1, 2", "4", "50.0 [33.3, 66.7]"]


def test_seeds_of_different_worlds_bring_their_own_questions(tmp_path: Path) -> None:
    for name, ems in {"base": [0, 1], "other": [1, 1]}.items():
        for seed in (0, 1):
            run(tmp_path, name, ems, seed=seed, first=10 * seed)
    text = compare(arms(tmp_path, "base", "other"))
    assert cells(text, "other:eval", 1)[1] == "0, 1"
    assert cells(text, "other:eval", 1)[2].startswith("+50.0")


def test_seeds_are_tested_by_their_means(tmp_path: Path) -> None:
    """Differences of the three seeds: 0.5, 0.25 and 0: t = 0.25 / (0.25 / sqrt(3)) = 1.732, 2 degrees of freedom."""
    for seed, ems in enumerate([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]):
        run(tmp_path, "base", [0, 0, 0, 0], seed=seed)
        run(tmp_path, "other", ems, seed=seed)
    text = compare(arms(tmp_path, "base", "other"))
    assert cells(text, "arm", 1)[-4:] == ["Holm", "p seeds", "Holm", "by seed"]
    assert cells(text, "other:eval", 1)[-3:] == ["0.225", "0.225", "+50.0, +25.0, +0.0"]


def test_one_seed_or_stage_alone_can_be_compared(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 1, 0, 0], seed=0)
    run(tmp_path, "exp", [1, 1, 1, 0], seed=1)
    text = compare(arms(tmp_path, str(tmp_path / "exp" / "seed0"), "exp/seed1:eval"))
    assert cells(text, "exp/seed1:eval", 1)[2].startswith("+25.0")


def test_different_questions_are_never_paired(tmp_path: Path) -> None:
    run(tmp_path, "a", [1, 0, 1])
    run(tmp_path, "b", [1, 0, 1], first=1)
    with pytest.raises(DataError, match=r"cannot pair b:eval with a:eval on toy/dev: 2 question ids differ \(q0"):
        compare(arms(tmp_path, "a", "b"))


def test_the_same_ids_of_other_questions_are_never_paired(tmp_path: Path) -> None:
    for name in ("a", "b"):
        predictions = [answered(i, 1, question=f"{name}'s question {i}") for i in range(3)]
        write(tmp_path, name, 0, {"eval": evaluation(tmp_path / "store" / name, predictions)})
    with pytest.raises(DataError, match="3 question ids differ"):
        compare(arms(tmp_path, "a", "b"))


def test_another_metric_and_questions_it_does_not_apply_to(tmp_path: Path) -> None:
    first = [answered(0, 1, recall=1.0), answered(1, 1, recall=None), answered(2, 1, recall=0.5)]
    write(tmp_path, "exp", 0, {"eval": evaluation(tmp_path / "store" / "x", first)})
    assert cells(compare(arms(tmp_path, "exp"), metric="recall"), "exp:eval")[2:4] == ["3", "75.0 [50.0, 100.0]"]
    for metric in ("recal", "status", "steps"):
        with pytest.raises(DataError, match=f"no question has the figure '{metric}'; there are: em, f1, recall"):
            compare(arms(tmp_path, "exp"), metric=metric)


def test_a_baseline_is_named_by_arm_experiment_or_stage(tmp_path: Path) -> None:
    run(tmp_path, "a", [1, 0])
    run(tmp_path, "b", [1, 1])
    both = arms(tmp_path, "a", "b")
    for name in ("b", "b:eval"):
        assert compare(both, baseline=name).startswith("Baseline: b:eval.")
    with pytest.raises(DataError, match="several arms are called 'eval'; choose one of: a:eval, b:eval"):
        compare(both, baseline="eval")
    for name in ("c", "ev"):
        with pytest.raises(DataError, match=f"no arm is called '{name}'"):
            compare(both, baseline=name)


def test_two_runs_of_one_name_are_refused_and_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    for place, ems in {"here": [1, 0], "there": [1, 1]}.items():
        run(tmp_path / place, "exp", ems)
    here, there = (arms(tmp_path / place, "exp") for place in ("here", "there"))
    with pytest.raises(DataError, match=r"two runs are called exp:eval \(.*here.* and .*there.*\): rename"):
        compare([*here, *there])
    assert compare([*here, *here]) == compare(here)
    os.rename(tmp_path / "there" / "exp", tmp_path / "there" / "other")
    assert cells(compare([*here, *arms(tmp_path / "there", "other")]), "other:eval", 1)[2].startswith("+50.0")


def test_missing_and_unfinished_runs_are_named(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    (tmp_path / "exp" / "seed1").mkdir()
    (tmp_path / "empty").mkdir()
    for name, message in {
        "nowhere": "no run at .*nowhere",
        "exp": "seed1 is unfinished",
        "empty": "empty has no finished evaluation",
        "exp/seed0:other": ".*exp/seed0 has no evaluation 'other'; it has: eval",
    }.items():
        with pytest.raises(DataError, match=message):
            find_arms(str(tmp_path / name))


def test_the_command_prints_or_says_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "runs", "a", [1, 0])
    run(tmp_path / "runs", "b", [1, 1])
    monkeypatch.chdir(tmp_path)
    main(["runs/a", "b", "--metric", "f1"])
    assert "F1" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^error: no run at c: give [^\n]*$"):
        main(["a", "c"])

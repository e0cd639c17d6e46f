from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from evaluation.report.stage_changes import changes_table
from tests.evaluation.fake import answered, evaluation

ROW = {"dataset": "toy", "split": "dev"}


def artifact(runs: Path, stage: str, kind: str, *inputs: str, ems: Sequence[float] = ()) -> Path:
    """A finished stage that needs others; an evaluation where `ems` are given."""
    folder = runs / f"{stage}-0"
    if ems:
        evaluation(folder, [answered(i, em) for i, em in enumerate(ems)])
    folder.mkdir(exist_ok=True)
    used = {name: {"artifact": f"{name}-0"} for name in inputs}
    (folder / "manifest.json").write_text(json.dumps({"kind": kind, "inputs": used}))
    return folder


def experiment(runs: Path) -> dict[str, Path]:
    """SFT, RFT from it, then RL from RFT with a reward model, which answers with both; RL is evaluated first."""
    return {
        "world": artifact(runs, "world", "make"),
        "eval_teacher": artifact(runs, "eval_teacher", "make", "world", ems=[1, 1, 1, 1]),
        "sft": artifact(runs, "sft", "fit", "world"),
        "pairs": artifact(runs, "pairs", "make", "sft"),
        "prm": artifact(runs, "prm", "fit", "pairs"),
        "rft": artifact(runs, "rft", "fit", "sft"),
        "rl": artifact(runs, "rl", "fit", "world", "rft", "prm"),
        "eval_rl": artifact(runs, "eval_rl", "make", "world", "prm", "rl", ems=[1, 1, 1, 0]),
        "eval_sft": artifact(runs, "eval_sft", "make", "world", "sft", ems=[0, 1, 1, 0]),
        "eval_rft": artifact(runs, "eval_rft", "make", "world", "rft", ems=[0, 1, 0, 0]),
    }


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_an_evaluation_is_compared_with_that_of_the_policy_the_stage_started_from(tmp_path: Path) -> None:
    rows = [{**ROW, "stage": stage} for stage in ("eval_teacher", "eval_rl", "eval_sft", "eval_rft")]
    header, _, rl, sft, rft = cells(changes_table(rows, experiment(tmp_path), {}))
    assert header == ["evaluation", "compared with", "dataset", "EM", "F1"]
    assert rl[:3] == ["eval_rl", "eval_rft", "toy/dev"]
    assert rl[3].startswith("+50.0 [+0.0, +")
    assert rl[4].startswith("+50.0 [")
    assert sft == ["eval_sft", "–", "toy/dev", "–", "–"], "no evaluation measured what it started from"
    assert (rft[1], rft[3].split()[0]) == ("eval_sft", "-25.0")


def test_a_dataset_that_the_earlier_evaluation_lacks_has_dashes(tmp_path: Path) -> None:
    rows = [{**ROW, "stage": "eval_rl"}, {**ROW, "stage": "eval_sft", "split": "test"}]
    assert cells(changes_table(rows, experiment(tmp_path), {}))[2] == ["eval_rl", "eval_sft", "toy/dev", "–", "–"]


def test_of_several_evaluations_it_is_compared_with_that_of_its_own_dataset_made_most_like_it(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    made["reader"] = artifact(tmp_path, "reader", "fit", "world")
    made["recall"] = artifact(tmp_path, "recall", "make", "world", "rft", ems=[1, 1, 1, 1])
    made["rft_reader"] = artifact(tmp_path, "rft_reader", "make", "world", "rft", "reader", ems=[0, 0, 0, 0])
    made["rl_reader"] = artifact(tmp_path, "rl_reader", "make", "world", "rl", "reader", ems=[1, 0, 0, 0])
    names = ("eval_rft", "rft_reader", "eval_rl", "rl_reader")
    rows = [{**ROW, "stage": stage} for stage in names] + [{**ROW, "dataset": "facts", "stage": "recall"}]
    lines = {line[0]: line[1] for line in cells(changes_table(rows, made, {}))[2:]}
    assert lines == {
        "eval_rft": "–", "rft_reader": "–", "eval_rl": "eval_rft", "rl_reader": "rft_reader", "recall": "–",
    }  # fmt: skip


def test_without_a_fitted_stage_there_is_no_table(tmp_path: Path) -> None:
    assert changes_table([{**ROW, "stage": "eval_teacher"}], experiment(tmp_path), {}) == ""
    assert changes_table([], {}, {}) == ""

"""What a policy came from and what that cost, over a small family of stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from evaluation.policy_ancestry import PolicyAncestry

TOKENS = {
    "search": {"policy": 700},
    "sample": {"policy": 80, "reader": 5},
    "rl": {"policy": 1000},
    "eval_rl": {"policy": 9},
}
UPDATES = {"sft": 150, "prm": 30, "rft": 20, "rl": 16}
NEEDS = {
    "world": [], "teach": ["world"], "sft": ["teach"], "eval_sft": ["world", "sft"], "search": ["sft"],
    "prm": ["search"],
    "sample": ["sft"], "rft": ["sft", "sample", "prm"], "eval_rft": ["rft"], "rl": ["rft", "prm"],
    "eval_rl": ["world", "prm", "rl"], "other": ["sft"], "eval_other": ["other"],
}  # fmt: skip


def family(runs: Path, **changes: dict[str, Any]) -> dict[str, Path]:
    artifacts = {}
    for stage, needs in NEEDS.items():
        judged = {"label": 0, "prm": 40}.get(stage, 0)
        costs = {"tokens": TOKENS.get(stage, {}), "updates": UPDATES.get(stage, 0), "judge_calls": judged}
        manifest = {"kind": "fit" if stage in ("sft", "prm", "rft", "rl", "other") else "make", "source": "aaa"}
        manifest |= {"costs": costs | {"cpu_seconds": 1.5}}
        manifest |= {"inputs": {need: {"artifact": f"{need}-0"} for need in needs}} | changes.get(stage, {})
        artifacts[stage] = runs / f"{stage}-0"
        artifacts[stage].mkdir(parents=True)
        (artifacts[stage] / "manifest.json").write_text(json.dumps(manifest))
    return artifacts


def test_the_costs_of_a_policy_are_those_of_all_that_it_came_from(tmp_path: Path) -> None:
    ancestry = PolicyAncestry.of(family(tmp_path))
    # nine stages; neither the evaluation itself nor `other` is among them, and `sft` counts once
    assert ancestry.costs("eval_rl") == {
        "tokens": {"policy": 1780, "reader": 5}, "updates": 216, "judge_calls": 40, "cpu_seconds": 12.0,
    }  # fmt: skip
    assert ancestry.costs("eval_sft") == {"tokens": {}, "updates": 150, "judge_calls": 0, "cpu_seconds": 4.5}


def test_the_first_policy_is_the_warm_up(tmp_path: Path) -> None:
    ancestry = PolicyAncestry.of(family(tmp_path))
    evaluations = ["eval_rl", "eval_other", "eval_rft", "eval_sft"]
    assert ancestry.before("eval_rl", evaluations) == ["eval_sft", "eval_rft"]
    assert ancestry.before("eval_other", evaluations) == ["eval_sft"]
    assert ancestry.before("eval_sft", evaluations) == []
    assert ancestry.policy("world") is None
    assert ancestry.before("world", evaluations) == []


def test_agents_before_another_frozen_generator_come_after_those_before_the_same(tmp_path: Path) -> None:
    """Two agents are trained from `first` and `second` before a rule; `reader` is a trained generator."""
    needs = {
        "first": [], "second": [], "reader": [], "joint": ["first", "second"],
        "eval_before": ["first", "second"], "eval_before_reader": ["first", "second", "reader"],
        "eval_after": ["joint"], "eval_after_reader": ["joint", "reader"], "eval_half": ["first"],
    }  # fmt: skip
    artifacts = {}
    for stage, read in needs.items():
        artifacts[stage] = tmp_path / f"{stage}-0"
        artifacts[stage].mkdir()
        kind = "make" if stage.startswith("eval") else "fit"
        inputs = {need: {"artifact": f"{need}-0"} for need in read}
        (artifacts[stage] / "manifest.json").write_text(json.dumps({"kind": kind, "inputs": inputs}))
    ancestry = PolicyAncestry.of(artifacts)
    evaluations = [stage for stage in needs if stage.startswith("eval")]
    assert ancestry.before("eval_after", evaluations) == ["eval_half", "eval_before"]
    assert ancestry.before("eval_after_reader", evaluations) == ["eval_before_reader", "eval_half", "eval_before"]
    assert ancestry.before("eval_before_reader", evaluations) == []


def test_the_code_of_a_policy_is_that_of_all_that_it_came_from(tmp_path: Path) -> None:
    ancestry = PolicyAncestry.of(family(tmp_path, search={"source": "bbb"}, eval_rl={"source": "ccc"}))
    assert ancestry.sources("eval_rl") == ["aaa", "bbb", "ccc"]
    assert ancestry.sources("eval_sft") == ["aaa"]


def test_a_stage_without_costs_is_named(tmp_path: Path) -> None:
    ancestry = PolicyAncestry.of(family(tmp_path, search={"costs": None}))
    with pytest.raises(DataError, match="stage search has no costs, an earlier version made it: --force search"):
        ancestry.costs("eval_rl")
    assert ancestry.costs("eval_sft")["updates"] == 150

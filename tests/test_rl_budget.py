"""Reinforcement learning that a budget of tokens ends, through `train.py`: killed and unbroken, two ranks and one."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.micro import run
from tests.test_rl import artifact, config, process, watched, weights

pytestmark = pytest.mark.usefixtures("without_reports")

BUDGET = 420  # three or four iterations


def budgeted(folder: Path, **changes: Any) -> Path:
    """The toy experiment with a budget, and a reward that asks the policy again where it meets one question alone."""
    path = config(folder, **changes)
    content = yaml.safe_load(path.read_text())
    stage = content["stages"]["rl"]
    stage["module"]["optimizer"]["floor"] = 0.1
    again = {"weight": 0.1, "level": "outcome", "reward": {"target": "tests.toy_rl:ask_again"}}
    stage["callbacks"]["rollout"]["rewards"]["again"] = again
    stage["callbacks"]["budget"] = {"target": "callbacks.budget:TokenBudget", "max_tokens": BUDGET}
    stage["trainer"]["max_epochs"] = 20
    path.write_text(yaml.safe_dump(content))
    return path


def costs(folder: Path) -> dict[str, Any]:
    told = json.loads((artifact(folder) / "manifest.json").read_text())["costs"]
    assert told.pop("cpu_seconds") > 0
    return told


def rate(folder: Path) -> float:
    """The learning rate that the step after the last would have."""
    last = torch.load(artifact(folder) / "checkpoints" / "last.ckpt", weights_only=True)
    return last["optimizer_states"][0]["param_groups"][0]["lr"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    assert run(config=budgeted(folder)) == 0
    return folder


def test_it_ends_with_the_iteration_that_spends_the_budget(unbroken: Path) -> None:
    told = costs(unbroken)
    assert told["tokens"].keys() == {"policy"}
    iterations = len(watched(unbroken, "epochs"))
    assert 2 < iterations < 20
    assert (told["updates"], told["judge_calls"]) == (2 * iterations, 0)
    sampled = told["tokens"]["policy"]
    assert BUDGET <= sampled < BUDGET * (1 + 2 / iterations)
    assert rate(unbroken) == pytest.approx(1e-3), "the floor: the budget is spent"


@pytest.mark.parametrize("moment", ["rollout", "update"])
def test_a_killed_run_spends_what_an_unbroken_one_does(tmp_path: Path, unbroken: Path, moment: str) -> None:
    path = budgeted(tmp_path, moment=moment)
    assert process(path).returncode == -signal.SIGKILL
    assert run(config=path) == 0
    assert costs(tmp_path) == costs(unbroken)
    assert weights(tmp_path) == weights(unbroken), "the learning rate went on where it was"


def test_a_run_that_is_killed_after_its_last_iteration_makes_no_other(unbroken: Path) -> None:
    before = watched(unbroken, "epochs"), costs(unbroken), weights(unbroken)
    (artifact(unbroken) / "manifest.json").rename(artifact(unbroken) / "origin.json")
    (artifact(unbroken) / "model" / "model.safetensors").unlink()
    assert run(config=budgeted(unbroken)) == 0
    assert (watched(unbroken, "epochs"), costs(unbroken), weights(unbroken)) == before


@pytest.mark.slow
def test_two_ranks_spend_what_one_does(tmp_path: Path, unbroken: Path) -> None:
    """Though one asks the policy again and the other does not."""
    ended = process(budgeted(tmp_path, devices=2, strategy="ddp"))
    assert ended.returncode == 0, ended.stderr
    assert costs(tmp_path) == costs(unbroken)
    assert rate(tmp_path) == pytest.approx(rate(unbroken))

"""A reward model refreshed in reinforcement learning, through `train.py`: killed and unbroken, two ranks and one."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.micro import run
from tests.test_rl import artifact, config, process, watched, weights
from tests.toy_refresh import save_reward_model


def refreshed(folder: Path, **changes: Any) -> Path:
    """The toy experiment with a reward model among its rewards, which is refreshed after the first two iterations."""
    path = config(folder, **changes)
    if not (folder / "prm").exists():
        save_reward_model(folder / "prm")
    content = yaml.safe_load(path.read_text())
    callbacks = content["stages"]["rl"]["callbacks"]
    scorer = {"target": "modules.reward_model.model:load_reward_model", "model": str(folder / "prm"), "device": "cpu"}
    process = {"target": "modules.rewards.process:process", "scorer": scorer}
    callbacks["rollout"]["rewards"]["prm"] = {"weight": 1.0, "level": "step", "reward": process}
    judge = {"target": "tests.toy_refresh:EvenEnd"}
    refresh = {"target": "tests.toy_refresh:RefreshInAnyFormat", "reward_model": scorer, "judge": judge, "lr": 1e-2}
    callbacks["refresh"] = refresh | {"every": 1}
    path.write_text(yaml.safe_dump(content))
    return path


def reward_weights(folder: Path) -> dict[str, torch.Tensor]:
    saved = artifact(folder) / "reward_model"
    return load_file(saved / "model.safetensors") | load_file(saved / "head.safetensors")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    assert run(config=refreshed(folder)) == 0
    return folder


def test_the_manifest_counts_the_steps_that_were_judged_in_the_loop(unbroken: Path) -> None:
    told = json.loads((artifact(unbroken) / "manifest.json").read_text())["accounts"]
    assert told["judged_steps"] == told["judge_calls"] > 3 * 16, "of three iterations of sixteen episodes"
    begun = load_file(unbroken / "prm" / "head.safetensors")
    assert not torch.equal(reward_weights(unbroken)["linear.weight"], begun["linear.weight"])


@pytest.mark.parametrize("moment", ["update"])
def test_a_killed_run_ends_in_the_bytes_of_an_unbroken_one(tmp_path: Path, unbroken: Path, moment: str) -> None:
    """The policy learns from what the reward model has become, and the reward model is the same."""
    path = refreshed(tmp_path, moment=moment)
    assert process(path).returncode == -signal.SIGKILL
    assert run(config=path) == 0
    assert watched(tmp_path, "epochs") == [0, 1, 2]
    assert weights(tmp_path) == weights(unbroken)
    ours, theirs = reward_weights(tmp_path), reward_weights(unbroken)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


@pytest.mark.slow
def test_two_ranks_refresh_as_one(tmp_path: Path) -> None:
    """After one iteration, over the same episodes: the same reward model but for the rounding of sums."""
    for name, settings in (("one", {}), ("two", {"devices": 2, "strategy": "ddp"})):
        (tmp_path / name).mkdir()
        ended = process(refreshed(tmp_path / name, max_epochs=1, **settings))
        assert ended.returncode == 0, ended.stderr
    one, two = reward_weights(tmp_path / "one"), reward_weights(tmp_path / "two")
    begun = load_file(tmp_path / "one" / "prm" / "model.safetensors")
    moved = {name: (value - begun[name]).norm() for name, value in one.items() if name in begun}
    assert max(moved.values()) > 0.01
    for name, value in one.items():
        assert (two[name] - value).norm() <= 1e-2 * max(moved.get(name, value.norm()), 1e-3), name

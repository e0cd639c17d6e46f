"""Credit over ranks, groups sampled anew, trees: two ranks step as one, a killed run as an unbroken one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.micro import run
from tests.test_rl import artifact, config, process, weights

pytestmark = pytest.mark.slow
RESAMPLE: dict[str, Any] = {
    "module": {"zero_variance": "resample", "resample_rounds": 2},
    "data": {"questions": {"target": "tests.toy_rl:Asked", "count": 16}},
    "reward": "tests.toy_rl:some_letters",
}
REINFORCE_PP: dict[str, Any] = {"module": {"credit": {"target": "modules.functional.credit:reinforce_pp_credit"}}}
EACH: dict[str, Any] = {
    "module": {"credit": {"target": "modules.functional.credit:grpo_credit", "scale_rewards": "each"}}
}
TREE: dict[str, Any] = {
    "module": {"credit": {"target": "modules.functional.credit:node_values_credit"}},
    "data": {"group_size": 1, "micro_batch": 2},
    "rollout": {"sampling": {"target": "envs.tree_rollout:TreeRollout"}},
}
STATE_GAIN: dict[str, Any] = {"module": {"credit": {"target": "modules.functional.credit:state_gain_credit"}}}


def changed(folder: Path, changes: dict[str, Any], **settings: Any) -> Path:
    """The stage of `tests.test_rl` with another module, data or outcome reward."""
    path = config(folder, **settings)
    content = yaml.safe_load(path.read_text())
    stage = content["stages"]["rl"]
    stage["module"] |= changes["module"]
    stage["data"] |= changes.get("data", {})
    stage["callbacks"]["rollout"] |= changes.get("rollout", {})
    if "reward" in changes:
        term = {"weight": 1.0, "level": "outcome", "reward": {"target": changes["reward"]}}
        stage["callbacks"]["rollout"]["rewards"] = {"letters": term}
    path.write_text(yaml.safe_dump(content))
    return path


def ended(path: Path) -> None:
    done = process(path)
    assert done.returncode == 0, done.stderr


def first_gradients(folder: Path, rank: int = 0) -> dict[str, torch.Tensor]:
    return torch.load(folder / "runs" / "gradients" / f"gradients-{rank}-0.pt")


@pytest.mark.parametrize(
    "changes",
    [REINFORCE_PP, RESAMPLE, STATE_GAIN, EACH, TREE],
    ids=["reinforce_pp", "resample", "state_gain", "each", "tree"],
)
def test_two_ranks_have_the_gradients_of_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Statistics over all ranks in the first and fourth, groups replaced by each rank for itself in the second."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert run(config=changed(tmp_path / "one", changes, max_epochs=1)) == 0
    ended(changed(tmp_path / "two", changes, max_epochs=1, devices=2, strategy="ddp"))
    one, two = first_gradients(tmp_path / "one"), [first_gradients(tmp_path / "two", rank) for rank in (0, 1)]
    total = torch.cat([gradient.flatten() for gradient in one.values()]).norm()
    assert total > 0
    for name, gradient in one.items():
        assert torch.equal(two[0][name], two[1][name])
        assert (two[0][name] - gradient).norm() <= 1e-5 * max(gradient.norm(), 1e-3 * total), name


def test_a_run_that_is_killed_while_it_samples_anew_ends_in_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    for name in ("unbroken", "killed"):
        (tmp_path / name).mkdir()
    assert run(config=changed(tmp_path / "unbroken", RESAMPLE, max_epochs=2)) == 0
    path = changed(tmp_path / "killed", RESAMPLE, max_epochs=2, moment="rollout")
    assert process(path).returncode == -signal.SIGKILL
    assert not (artifact(tmp_path / "killed") / "manifest.json").exists()
    assert run(config=path) == 0
    assert weights(tmp_path / "killed") == weights(tmp_path / "unbroken")

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

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_reports")]
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


WAYS = {"reinforce_pp": REINFORCE_PP, "resample": RESAMPLE, "state_gain": STATE_GAIN, "each": EACH, "tree": TREE}


def every_way(folder: Path, **settings: Any) -> Path:
    """A stage for each, of one iteration, in one experiment."""
    stages: dict[str, Any] = {}
    for name, changes in WAYS.items():
        path = changed(folder, changes, max_epochs=1, **settings)
        (gradients := folder / "runs" / name / "gradients").mkdir(parents=True)
        content = yaml.safe_load(path.read_text())
        stages[name] = content["stages"]["rl"]
        stages[name]["module"]["folder"] = str(gradients)
    path.write_text(yaml.safe_dump(content | {"stages": stages}))
    return path


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `one` and `two`, the same experiment on one rank and on two."""
    folder = tmp_path_factory.mktemp("credit")
    for name in ("one", "two"):
        (folder / name).mkdir()
    assert run(config=every_way(folder / "one")) == 0
    ended = process(every_way(folder / "two", devices=2, strategy="ddp"))
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_have_the_gradients_of_one(one_and_two: Path, way: str) -> None:
    """Statistics over all ranks in the first and fourth, groups replaced by each rank for itself in the second."""
    one, *two = (
        torch.load(one_and_two / ranks / "runs" / way / "gradients" / f"gradients-{rank}-0.pt")
        for ranks, rank in (("one", 0), ("two", 0), ("two", 1))
    )
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

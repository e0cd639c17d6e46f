"""Several agents through `train.py`: killed and unbroken, two ranks and one, with trees of unequal turns and leaves."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.micro import run
from tests.test_rl import artifact, config, process, watched
from tests.toy_agents import ANSWERER, ASKER, PICKER, ROOT, save_two_policies

pytestmark = pytest.mark.usefixtures("without_reports")

LORA: dict[str, Any] = {"lora": {"target": "modules.lora:LoRA", "r": 4}}


def agents_config(folder: Path, *, adapters: bool = False, max_epochs: int = 2, **settings: Any) -> Path:
    """The stage of `tests.test_rl` with two agents and a critic on trees; `adapters`: both on one backbone."""
    path = config(folder, max_epochs=max_epochs, **settings)
    if not (folder / ASKER).exists():
        save_two_policies(folder)

    def load(name: str) -> dict[str, Any]:
        return {"target": "modules.policy:load_policy", "model": str(folder / name), "device": "cpu"}

    content = yaml.safe_load(path.read_text())
    stage = content["stages"]["rl"]
    stage["module"] = {
        "target": "tests.toy_agents:RecordingJointPPO",
        "policies": {ASKER: load(ASKER), PICKER: load(ASKER if adapters else PICKER)},
        "optimizer": stage["module"]["optimizer"],
        "state": {"target": "tests.toy_agents:seen", "tokenizer": str(folder / ASKER)},
        "critic": {
            "target": "modules.reward_model.model:load_reward_model",
            "model": str(folder / "critic"),
            "device": "cpu",
        },
        "critic_lr": 3e-2,
        "kl_weight": 0.1,
        "folder": stage["module"]["folder"],
        **(LORA if adapters else {}),
    }
    stage["data"] |= {"group_size": 1, "micro_batch": 2, "questions_per_iteration": 8}
    rollout, plain = stage["callbacks"]["rollout"], "modules.samplers.in_process:InProcessSampler"
    rollout["environment"] = {"target": "tests.toy_agents:agents_environment", "tokenizer": str(folder / ASKER)}
    own = {"target": plain, "temperature": 1.0, "batch_size": 3}  # so two ranks do not sample equally many batches
    samplers: dict[str, Any] = {ASKER: own, PICKER: own}
    samplers[ANSWERER] = {"target": plain, "policy": load(ANSWERER)}
    rollout["sampler"] = {"target": "envs.sampling:ByAgent", "samplers": samplers}
    rollout["sampling"] = {"target": "envs.tree_rollout:TreeRollout", "root": ROOT}
    rollout["rewards"] = {
        "picked": {"level": "outcome", "reward": {"target": "tests.toy_agents:picked_letters"}},
        "judge": {"level": "step", "reward": {"target": "tests.toy_agents:judged_letters"}},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def exported(folder: Path) -> dict[str, bytes]:
    """Everything that a run has trained."""
    return {
        path.relative_to(artifact(folder)).as_posix(): path.read_bytes()
        for path in sorted(artifact(folder).rglob("*.safetensors"))
    }


@pytest.fixture(scope="module", params=[False, True], ids=["weights", "adapters"])
def unbroken(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, bool]:
    folder = tmp_path_factory.mktemp("agents")
    assert run(config=agents_config(folder, adapters=request.param)) == 0
    return folder, request.param


def test_it_exports_every_agent_and_the_critic(unbroken: tuple[Path, bool]) -> None:
    folder, adapters = unbroken
    names = {f"model/{agent}/model.safetensors" for agent in (ASKER, PICKER)}
    names |= {f"adapter/{agent}/adapter_model.safetensors" for agent in (ASKER, PICKER)} if adapters else set()
    files = exported(folder)
    assert files.keys() == names | {"critic/model.safetensors", "critic/head.safetensors"}
    assert files[f"model/{ASKER}/model.safetensors"] != files[f"model/{PICKER}/model.safetensors"]
    last = torch.load(artifact(folder) / "checkpoints" / "last.ckpt", weights_only=True)
    frozen = [name for name in last["state_dict"] if name.startswith("model.") and "lora_" not in name]
    assert not adapters or all("trainable_tokens" in name for name in frozen), "a checkpoint holds what trains"


@pytest.mark.parametrize("moment", ["rollout", "update"])
def test_a_killed_run_ends_in_the_bytes_of_an_unbroken_one(
    tmp_path: Path, unbroken: tuple[Path, bool], moment: str
) -> None:
    folder, adapters = unbroken
    path = agents_config(tmp_path, adapters=adapters, moment=moment)
    assert process(path).returncode == -signal.SIGKILL
    assert not (artifact(tmp_path) / "manifest.json").exists()
    assert run(config=path) == 0
    assert watched(tmp_path, "epochs") == [0, 1], "the second run goes on, it does not start again"
    assert exported(tmp_path) == exported(folder)


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one(tmp_path: Path, unbroken: tuple[Path, bool]) -> None:
    """Of every agent and of the critic, though ranks have different numbers of turns and leaves."""
    folder, adapters = unbroken
    ended = process(agents_config(tmp_path, adapters=adapters, max_epochs=3, devices=2, strategy="ddp"))
    assert ended.returncode == 0, ended.stderr
    assert watched(tmp_path, "calls-0") != watched(tmp_path, "calls-1")
    one = torch.load(folder / "runs" / "gradients" / "gradients-0-0.pt")
    two = [torch.load(tmp_path / "runs" / "gradients" / f"gradients-{rank}-0.pt") for rank in (0, 1)]
    assert set(one) == set(two[0])
    for owner in (f"model.{ASKER}.", f"model.{PICKER}.", "critic_model.", "head."):
        total = torch.cat([gradient.flatten() for name, gradient in one.items() if name.startswith(owner)]).norm()
        assert total > 0, owner
        for name in (name for name in one if name.startswith(owner)):
            assert torch.equal(two[0][name], two[1][name])
            assert (two[0][name] - one[name]).norm() <= 1e-5 * max(one[name].norm(), 1e-3 * total), name

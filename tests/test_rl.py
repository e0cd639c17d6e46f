"""Reinforcement learning through `train.py`: killed and unbroken, two ranks and one, the same training."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests import forked
from tests.micro import run
from tests.toy_rl import save_critic, save_policy

pytestmark = pytest.mark.usefixtures("without_reports")

ITERATIONS = 3


STRATEGIES = {"ddp": "ddp", "fsdp2": {"target": "modules.sharding:FSDP2"}}


def ppo(folder: Path, start: dict[str, str]) -> dict[str, Any]:
    """What makes PPO of the stage's GRPO: a critic from disk, and a divergence from the first policy in the reward."""
    if not (folder / "critic").exists():
        save_critic(folder / "critic")
    critic = {
        "target": "modules.reward_model.model:load_reward_model",
        "model": str(folder / "critic"),
        "device": "cpu",
    }
    credit = {"target": "modules.functional.credit:gae_credit", "kl_weight": 0.1}
    module: dict[str, Any] = {"target": "tests.toy_rl:RecordingPPO", "critic": critic, "critic_lr": 3e-2}
    return module | {"credit": credit, "reference": start}


def config(folder: Path, *, devices: int = 1, moment: str = "never", critic: bool = False, **changes: Any) -> Path:
    """A stage of a few iterations, two updates each, every update in two micro-batches; at a moment it is killed."""
    policy = folder / "policy"
    if not policy.exists():
        save_policy(policy)
        (folder / "runs" / "gradients").mkdir(parents=True)  # where only its name counts for the fingerprint
    killer = {"target": "tests.toy_rl:KillOnce", "flag": str(folder / "runs" / "flag"), "moment": moment}
    rollout = {
        "target": "tests.toy_rl:WatchedRollout",
        "killer": killer,
        "environment": {
            "target": "envs.retrieval:RetrievalEnvironment",
            "protocol": {"target": "envs.protocols.prorag:ProRAG", "tokenizer": str(policy), "instruction": ""},
            "retriever": {"target": "tests.toy_rl:retriever"},
            "limits": {"target": "envs.types:Limits", "turns": 3, "turn_tokens": 8, "total_tokens": 256},
        },
        "sampler": {"target": "modules.samplers.in_process:InProcessSampler", "temperature": 1.0},
        # Two ranks do not sample equally many batches.
        "sampling": {"target": "envs.rollout:independent_groups", "pool": 5},
        "rewards": {
            "letters": {"weight": 1.0, "level": "outcome", "reward": {"target": "tests.toy_rl:letters"}},
            "steps": {"weight": 0.5, "level": "step", "reward": {"target": "tests.toy_rl:step_letters"}},
        },
    }
    checkpoint: dict[str, Any] = {"target": "lightning.pytorch.callbacks:ModelCheckpoint", "filename": "last"}
    checkpoint["enable_version_counter"] = False
    start = {"target": "modules.policy:load_policy", "model": str(policy), "device": "cpu"}
    module: dict[str, Any] = {
        "target": "tests.toy_rl:RecordingGRPO",
        "policy": start,
        "optimizer": {"target": "modules.optimizer:AdamW", "lr": 1e-2},
        "credit": {"target": "modules.functional.credit:dual_granularity_credit", "beta": 0.3},
        "folder": str(folder / "runs" / "gradients"),
    }
    stage = {
        "module": module | (ppo(folder, start) if critic else {}),
        "data": {
            "target": "datamodules.question_data:QuestionData",
            "questions": {"target": "tests.toy_rl:Asked", "count": 10},
            "questions_per_iteration": 4,
            "group_size": 4,
            "updates": 2,
            "micro_batch": 4,
        },
        "callbacks": {"rollout": rollout, "checkpoint": checkpoint, "killer": killer},
        "trainer": {"max_epochs": ITERATIONS, "gradient_clip_val": 1.0, **changes},
    }
    content = {"experiment": "rl", "output": str(folder / "runs"), "accelerator": "cpu", "devices": devices}
    path = folder / "rl.yaml"
    path.write_text(yaml.safe_dump(content | {"stages": {"rl": stage}}))
    return path


def process(path: Path) -> subprocess.CompletedProcess[str]:
    return forked.run("--config", str(path))


def artifact(folder: Path) -> Path:
    (found,) = (folder / "runs" / "store").glob("rl-*[0-9a-f]")
    return found


def weights(folder: Path) -> bytes:
    return (artifact(folder) / "model" / "model.safetensors").read_bytes()


def critic_weights(folder: Path) -> list[bytes]:
    """Backbone and head."""
    names = ("model.safetensors", "head.safetensors", "reward_model.json")
    return [(artifact(folder) / "critic" / name).read_bytes() for name in names]


def watched(folder: Path, name: str) -> list[int]:
    """What the killer and the rollout wrote beside the flag."""
    return [int(number) for number in (folder / "runs" / f"flag.{name}").read_text().split()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    assert run(config=config(folder)) == 0
    return folder


@pytest.fixture(scope="module", params=STRATEGIES)
def two_ranks(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    ended = process(config(folder, devices=2, strategy=STRATEGIES[request.param]))
    assert ended.returncode == 0, ended.stderr
    return folder


def test_it_trains_and_exports_its_last_policy(unbroken: Path) -> None:
    model = load_file(artifact(unbroken) / "model" / "model.safetensors")
    begun = load_file(unbroken / "policy" / "model.safetensors")
    assert all(not torch.equal(model[name], begun[name]) for name in model if "norm" not in name)
    last = torch.load(artifact(unbroken) / "checkpoints" / "last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (ITERATIONS - 1, 2 * ITERATIONS)
    assert all(torch.equal(last["state_dict"][f"model.{name}"], value) for name, value in model.items())


def test_neither_buffer_nor_random_state_is_saved(unbroken: Path) -> None:
    last = torch.load(artifact(unbroken) / "checkpoints" / "last.ckpt", weights_only=True)
    assert not any("question" in key.lower() for key in last), "the datamodule has no state"
    (rollout,) = [state for key, state in last["callbacks"].items() if "Rollout" in key]
    assert rollout.keys() == {"counts"}, "and the rollout has its costs alone"
    assert "rng" not in str(last.keys()).lower()


def test_tensorboard_has_every_iteration_s_measures_and_times(unbroken: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(unbroken / "runs" / "rl" / "seed0" / "rl")).Reload()
    tags = set(accumulator.Tags()["scalars"])
    named = "reward rewards/letters/mean rewards/steps/mean frac_reward_zero_std entropy clip_ratio/region_mean kl "
    named += "adv/mean search/count format/valid_rate stop/answered stop/malformed completions/mean_length "
    named += "tokens/rollout tokens/rewards "
    named += "time/rollout time/retrieval time/rewards time/update perf/tokens_per_s loss grad_norm lr logp_gap/max"
    assert set(named.split()) <= tags
    for tag in ("reward", "entropy", "time/update"):
        assert len(accumulator.Scalars(tag)) == ITERATIONS
    assert all(event.value > 0 for event in accumulator.Scalars("time/rollout"))


@pytest.mark.parametrize("moment", ["rollout", "update"])
def test_a_killed_run_ends_in_the_bytes_of_an_unbroken_one(tmp_path: Path, unbroken: Path, moment: str) -> None:
    path = config(tmp_path, moment=moment)
    assert process(path).returncode == -signal.SIGKILL
    assert (tmp_path / "runs" / "flag").exists()
    assert not (artifact(tmp_path) / "manifest.json").exists()
    assert run(config=path) == 0
    assert watched(tmp_path, "epochs") == [0, 1, 2], "the second run goes on, it does not start again"
    assert weights(tmp_path) == weights(unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("two_ranks", ["ddp"], indirect=True)
def test_two_ranks_of_which_one_is_killed_end_in_the_bytes_of_unbroken_ones(tmp_path: Path, two_ranks: Path) -> None:
    path = config(tmp_path, devices=2, moment="rollout", strategy="ddp")
    assert process(path).returncode == 128 + signal.SIGKILL
    assert (tmp_path / "runs" / "flag").exists()
    assert not (artifact(tmp_path) / "manifest.json").exists()
    ended = process(path)
    assert ended.returncode == 0, ended.stderr
    assert watched(tmp_path, "epochs") == [0, 0, 1, 1, 2, 2], "each rank goes on, it does not start again"
    assert weights(tmp_path) == weights(two_ranks)


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one(unbroken: Path, two_ranks: Path) -> None:
    """Before the optimiser and over the same episodes."""
    one = torch.load(unbroken / "runs" / "gradients" / "gradients-0-0.pt")
    two = [torch.load(two_ranks / "runs" / "gradients" / f"gradients-{rank}-0.pt") for rank in (0, 1)]
    assert set(one) == set(two[0])
    total = torch.cat([gradient.flatten() for gradient in one.values()]).norm()
    for name, gradient in one.items():
        assert torch.equal(two[0][name], two[1][name])
        assert (two[0][name] - gradient).norm() <= 1e-5 * max(gradient.norm(), 1e-3 * total), name


@pytest.mark.slow
def test_ranks_may_take_different_numbers_of_turns(two_ranks: Path) -> None:
    """And nothing hangs, for no call in a rollout waits for the other rank."""
    one, other = (watched(two_ranks, f"calls-{rank}") for rank in (0, 1))
    assert one != other


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_export_the_best_policy_and_not_the_last(tmp_path: Path, strategy: str) -> None:
    """With a critic: both are those of the second of three iterations."""
    path = config(tmp_path, devices=2, critic=True, strategy=STRATEGIES[strategy])
    content = yaml.safe_load(path.read_text())
    callbacks = content["stages"]["rl"]["callbacks"]
    monitor = {"filename": "best", "monitor": "eval/toy/dev/em", "mode": "max"}
    callbacks |= {"best": callbacks["checkpoint"] | monitor, "answers": {"target": "tests.toy_training:Answered"}}
    path.write_text(yaml.safe_dump(content))
    ended = process(path)
    assert ended.returncode == 0, ended.stderr
    saved = {name: torch.load(artifact(tmp_path) / "checkpoints" / f"{name}.ckpt") for name in ("best", "last")}
    assert {name: one["epoch"] for name, one in saved.items()} == {"best": 1, "last": 2}
    model = load_file(artifact(tmp_path) / "model" / "model.safetensors")
    critic = load_file(artifact(tmp_path) / "critic" / "model.safetensors")
    kept, last = saved["best"]["state_dict"], saved["last"]["state_dict"]
    assert all(torch.equal(kept[f"model.{name}"], weight) for name, weight in model.items())
    assert not all(torch.equal(last[f"model.{name}"], weight) for name, weight in model.items())
    trained = {name: weight for name, weight in critic.items() if f"critic_model.{name}" in kept}
    assert len(trained) > 10
    assert all(torch.equal(kept[f"critic_model.{name}"], weight) for name, weight in trained.items())
    manifest = json.loads((artifact(tmp_path) / "manifest.json").read_text())
    assert manifest["metrics"]["eval/toy/dev/em"] == pytest.approx(0.9)


@pytest.fixture(scope="module")
def unbroken_ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ppo")
    assert run(config=config(folder, critic=True)) == 0
    return folder


def test_a_critic_is_trained_and_exported_beside_its_policy(unbroken_ppo: Path) -> None:
    begun = load_file(unbroken_ppo / "critic" / "model.safetensors")
    model, critic = (load_file(artifact(unbroken_ppo) / name / "model.safetensors") for name in ("model", "critic"))
    for name, first in begun.items():
        if "norm" not in name and "lm_head" not in name:
            assert not torch.equal(critic[name], first), name
            assert not torch.equal(critic[name], model[name]), name
    heads = [load_file(folder / "critic" / "head.safetensors") for folder in (unbroken_ppo, artifact(unbroken_ppo))]
    assert all(not torch.equal(heads[0][name], heads[1][name]) for name in ("linear.weight", "zero"))
    manifest = json.loads((artifact(unbroken_ppo) / "manifest.json").read_text())
    assert {"loss/value", "critic/explained_variance", "critic/clip_ratio"} <= manifest["metrics"].keys()


@pytest.mark.parametrize("moment", ["rollout", "update"])
def test_a_killed_critic_ends_in_the_bytes_of_an_unbroken_one(tmp_path: Path, unbroken_ppo: Path, moment: str) -> None:
    path = config(tmp_path, moment=moment, critic=True)
    assert process(path).returncode == -signal.SIGKILL
    assert run(config=path) == 0
    assert watched(tmp_path, "epochs") == [0, 1, 2], "the second run goes on, it does not start again"
    assert weights(tmp_path) == weights(unbroken_ppo)
    assert critic_weights(tmp_path) == critic_weights(unbroken_ppo)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_with_a_critic_have_the_gradients_of_one(tmp_path: Path, unbroken_ppo: Path, strategy: str) -> None:
    """Values, whitened advantages and both losses, with unequal numbers of turns."""
    ended = process(config(tmp_path, devices=2, critic=True, strategy=STRATEGIES[strategy], max_epochs=1))
    assert ended.returncode == 0, ended.stderr
    assert watched(tmp_path, "calls-0") != watched(tmp_path, "calls-1")
    one = torch.load(unbroken_ppo / "runs" / "gradients" / "gradients-0-0.pt")
    two = [torch.load(tmp_path / "runs" / "gradients" / f"gradients-{rank}-0.pt") for rank in (0, 1)]
    assert set(one) == set(two[0])
    for owner in ("model.", "critic_model.", "head."):
        total = torch.cat([gradient.flatten() for name, gradient in one.items() if name.startswith(owner)]).norm()
        assert total > 0
        for name in (name for name in one if name.startswith(owner)):
            assert torch.equal(two[0][name], two[1][name])
            assert (two[0][name] - one[name]).norm() <= 1e-5 * max(one[name].norm(), 1e-3 * total), name
    assert all(file.stat().st_size for file in (artifact(tmp_path) / "critic").iterdir())

"""Two ranks and one, DDP and FSDP2, broken off and unbroken: the same training."""

from __future__ import annotations

import json
import subprocess
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import train
from datamodules.records import pair_to_row, write_rows
from envs.protocols.prorag import ProRAG
from tests import forked, micro
from tests.steps import toy_pairs
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_rl import save_policy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_reports")]  # each start of two ranks takes its time
ROOT = Path(train.__file__).parent
SMALL = [setting for setting in micro.SMALL if setting.startswith("stages.world")]
SHARDED = {"strategy": {"target": "modules.sharding:FSDP2"}}
LORA = {"target": "modules.lora:LoRA", "r": 4}
TRAINED = ("ddp", "ddp_lora", "fsdp", "fsdp_lora", "fsdp_bf16", "prm", "prm_lora", "dpo", "dpo_lora", "grpo", "ppo")


def teach() -> dict[str, Any]:
    """A stage of episodes to learn from, of two to eight turns."""
    data = {
        "target": "datamodules.episode_sampling:EpisodeSampling",
        "questions": {"target": "datamodules.sources.world_questions:WorldQuestions", "path": "${stage:world}"}
        | {"split": "sft"},
        "environment": {
            "target": "envs.retrieval:RetrievalEnvironment",
            "protocol": "${parts.protocol}",
            "retriever": "${parts.retriever}",
            "limits": {"target": "envs.types:Limits", "turn_tokens": 64},
        },
        "sampler": {"target": "envs.world.teacher:Teacher", "world": "${stage:world}", "protocol": "${parts.protocol}"},
    }
    return {"data": data}


def checkpoint(name: str, **settings: Any) -> dict[str, Any]:
    target = {"target": "lightning.pytorch.callbacks:ModelCheckpoint", "enable_version_counter": False}
    return target | {"filename": name} | settings


def stage(module: dict[str, Any], data: dict[str, Any], callbacks: dict[str, Any], **trainer: Any) -> dict[str, Any]:
    """Two epochs, a checkpoint after each."""
    optimizer = {"target": "modules.optimizer:AdamW", "lr": 1e-3, "floor": 1.0}
    return {
        "module": module | {"optimizer": optimizer},
        "data": data,
        "callbacks": {"checkpoint": checkpoint("last")} | callbacks,
        "trainer": {"max_epochs": 2, "gradient_clip_val": 0.5, **trainer},
    }


def sft(
    trainer: dict[str, Any], callbacks: dict[str, Any] | None = None, batch_size: int = 8, **settings: Any
) -> dict[str, Any]:
    """Fine-tuning on the teacher's episodes, eight of them in a forward pass."""
    policy = {"target": "modules.policy:random_policy", "tokenizer": "${parts.tokenizer}"}
    policy |= {"hidden_size": 32, "layers": 2, "feed_forward": 32}
    data = {"target": "datamodules.episode_data:EpisodeData", "path": "${stage:teach}"}
    data |= {"batch_size": batch_size, "micro_batch": 8}
    return stage({"target": "modules.sft:SFT", "policy": policy, **settings}, data, callbacks or {}, **trainer)


def prm(folder: Path, trainer: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A reward model, the better of its two epochs; the pairs held out are not as many as fill the ranks' batches."""
    pairs = str(folder / "pairs")
    module = {"target": "modules.prm:PRM", "policy": {"target": "modules.policy:load_policy", "model": pairs}}
    data = {"target": "datamodules.pair_data:PairData", "path": pairs, "batch_size": 8, "validation": 0.3}
    best = checkpoint("best", monitor="prm/pair_accuracy", mode="max")
    return stage(module | settings, data, {"best": best}, **trainer)


def dpo(folder: Path, trainer: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Preference optimisation on the same pairs; with adapters the reference is the sharded model without them."""
    pairs = str(folder / "pairs")
    policy = {"target": "modules.policy:load_policy", "model": pairs}
    module = {"target": "modules.dpo:DPO", "policy": policy, "reference": policy}
    data = {"target": "datamodules.turn_pair_data:TurnPairData", "path": pairs, "batch_size": 8, "micro_batch": 4}
    return stage(module | settings, data | {"validation": 0.3}, {}, **trainer)


def grpo(folder: Path, trainer: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Reinforcement learning with rewards for a letter; episodes end after one to three turns."""
    policy = str(folder / "policy")
    rewards = {
        name: {"weight": 1.0, "level": level, "reward": {"target": f"tests.toy_rl:{name}"}}
        for name, level in {"letters": "outcome", "step_letters": "step"}.items()
    }
    rewards["asks"] = {"weight": 0.0, "level": "outcome", "reward": {"target": "tests.toy_rl:ask_again"}}
    rollout = {
        "target": "callbacks.rollout:RolloutCallback",
        "environment": {
            "target": "envs.retrieval:RetrievalEnvironment",
            "protocol": {"target": "envs.protocols.prorag:ProRAG", "tokenizer": policy, "instruction": ""},
            "retriever": {"target": "tests.toy_rl:retriever"},
            "limits": {"target": "envs.types:Limits", "turns": 3, "turn_tokens": 8, "total_tokens": 256},
        },
        "sampler": {"target": "modules.samplers.in_process:InProcessSampler", "temperature": 1.0},
        "rewards": rewards,
    }
    data = {
        "target": "datamodules.question_data:QuestionData",
        "questions": {"target": "tests.toy_rl:Asked"},
        "questions_per_iteration": 4,
        "group_size": 4,
        "micro_batch": 8,
    }
    start = {"target": "modules.policy:load_policy", "model": policy}  # and the reference: its adapters disabled
    module = {"target": "modules.grpo:GRPO", "policy": start, "reference": start, "kl_weight": 0.1}
    module["credit"] = {"target": "modules.functional.credit:dual_granularity_credit", "beta": 0.3}
    return stage(module | settings, data, {"rollout": rollout}, **trainer)


def ppo(folder: Path, trainer: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The same with a critic, of which all weights train, and the divergence in the reward."""
    credit = {"target": "modules.functional.credit:gae_credit", "kl_weight": 0.1}
    with_critic = {"target": "modules.ppo:PPO", "credit": credit, "kl_weight": 0.0, "critic_lr": 1e-3}
    return grpo(folder, trainer, **with_critic, **settings)


def experiment(folder: Path, name: str, broken: tuple[str, ...] = ()) -> Path:
    """Every way to train, as stages of one experiment; `broken` stages are killed once, in their second epoch."""
    output = folder / name
    output.mkdir()
    turns = {"turns": {"target": "tests.unequal:UnequalTurns", "file": str(output / "turns")}}
    bf16 = {"precision": "bf16-mixed"}
    stages: dict[str, Any] = {
        "eval_teacher": None,
        "eval_untrained": None,
        "teach": teach(),
        "ddp": sft({"strategy": "ddp"}),
        "ddp_lora": sft({"strategy": "ddp"}, lora=LORA | {"dropout": 0.1}),
        "fsdp": sft(SHARDED, turns),
        "fsdp_lora": sft(SHARDED, lora=LORA),
        "fsdp_bf16": sft(SHARDED | bf16, turns, batch_size=16, gradient_checkpointing=True),
        "prm": prm(folder, SHARDED, features=True),
        "prm_lora": prm(folder, {"strategy": "ddp"}, lora=LORA, features=True, pointwise=0.5),
        "dpo": dpo(folder, SHARDED),
        "dpo_lora": dpo(folder, SHARDED, lora=LORA | {"r": 2}),
        "grpo": grpo(folder, SHARDED, lora=LORA),
        "ppo": ppo(folder, SHARDED, lora=LORA),
    }
    for victim in broken:
        kill = {"target": "tests.toy_training:SignalOnce", "flag": str(output / f"{victim}.killed"), "epoch": 1}
        stages[victim]["callbacks"]["kill"] = kill
    path = folder / f"{name}.yaml"
    content = {"base": [str(micro.WORLD)], "experiment": "scale", "output": str(output), "accelerator": "cpu"}
    path.write_text(yaml.safe_dump(content | {"stages": stages}))
    return path


def two_ranks(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("--config", str(path), *SMALL, "devices=2", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `one` and `two`, the same experiment on one rank and on two."""
    folder = tmp_path_factory.mktemp("scale")
    save_policy(folder / "policy")
    tiny_policy(byte_tokenizer()).save(folder / "pairs")
    pairs = toy_pairs(ProRAG(folder / "pairs", instruction=""), 40)
    write_rows(folder / "pairs" / "data" / "pairs.jsonl", map(pair_to_row, pairs))
    plain = [f"stages.{name}.trainer.strategy=auto" for name in TRAINED]
    assert micro.run(*SMALL, *plain, config=experiment(folder, "one")) == 0
    run = two_ranks(experiment(folder, "two"))
    assert run.returncode == 0, run.stderr
    return folder


def artifact(output: Path, name: str) -> Path:
    (found,) = (output / "store").glob(f"{name}-*")
    return found


MODEL, ADAPTER = "model/model.safetensors", "adapter/adapter_model.safetensors"
CRITIC, HEAD = "critic/model.safetensors", "critic/head.safetensors"


def weights(output: Path, name: str, file: str = MODEL) -> dict[str, Tensor]:
    return load_file(artifact(output, name) / file)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *((name, MODEL) for name in ("ddp", "fsdp", "fsdp_lora", "prm", "prm_lora", "dpo", "dpo_lora", "grpo", "ppo")),
        *((name, ADAPTER) for name in ("fsdp_lora", "dpo_lora", "grpo", "ppo")),
        *(("ppo", file) for file in (CRITIC, HEAD)),
    ],
)
def test_two_ranks_end_in_the_weights_of_one(folder: Path, name: str, file: str) -> None:
    one, two = weights(folder / "one", name, file), weights(folder / "two", name, file)
    assert one.keys() == two.keys()
    # The order of sums changes the last bits of a gradient, and Adam divides by its size: near 0 its noise is a part
    # of the step, which is 1e-3. A gradient that is wrong moves most parameters, not one in a thousand.
    apart = torch.cat([(one[key] - two[key]).abs().flatten().float() for key in one])
    assert apart.quantile(0.999) < 5e-6
    assert apart.max() < 5e-5
    assert file != ADAPTER or all(bool(one[key].any()) for key in one if "lora_B" in key), "which begin as 0"


@pytest.mark.parametrize("name", ["prm", "prm_lora"])
def test_two_ranks_read_and_calibrate_as_one(folder: Path, name: str) -> None:
    one, two = (artifact(folder / output, name) / "model" for output in ("one", "two"))
    heads = [load_file(model / "head.safetensors") for model in (one, two)]
    assert all(torch.allclose(heads[0][key], heads[1][key], atol=1e-5) for key in heads[0])
    settings = [json.loads((model / "reward_model.json").read_text()) for model in (one, two)]
    for key in ("scale", "offset"):
        assert settings[0][key] == pytest.approx(settings[1][key], rel=1e-3, abs=1e-5)
    assert settings[0]["scale"] != 1


@pytest.mark.parametrize("name", ["prm", "prm_lora", "dpo", "dpo_lora"])
def test_two_ranks_measure_as_one(folder: Path, name: str) -> None:
    one, two = (micro.metrics(artifact(folder / output, name)) for output in ("one", "two"))
    told = {"accuracy", "prm/pair_accuracy"}
    if name.startswith("dpo"):
        told = {"dpo/margin", "dpo/accuracy", "dpo/val_margin", "dpo/val_chosen_drift"}
        assert one["dpo/val_margin"] != 0
    assert one.keys() == two.keys() >= told
    assert one == pytest.approx(two, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["prm", "prm_lora"])
def test_the_best_epoch_is_exported_and_a_later_one_that_is_no_better_is_not(folder: Path, name: str) -> None:
    made = artifact(folder / "two", name)
    best, last = (
        torch.load(made / "checkpoints" / file)["state_dict"]["head.linear.weight"]
        for file in ("best.ckpt", "last.ckpt")
    )
    exported = load_file(made / "model" / "head.safetensors")["linear.weight"]
    assert torch.equal(exported, best)
    assert not torch.equal(exported, last)


def test_in_bfloat16_they_are_as_close_as_its_rounding(folder: Path) -> None:
    one, two = weights(folder / "one", "fsdp_bf16"), weights(folder / "two", "fsdp_bf16")
    far = torch.cat([(one[key] - two[key]).abs().flatten() for key in one])
    assert all(value.dtype == torch.float32 for value in two.values())
    assert float(far.mean()) < 1e-4


def test_ranks_may_sample_different_numbers_of_turns_under_sharded_weights(folder: Path) -> None:
    for precision in (0, 1):  # float32 first, then bfloat16, two epochs each
        for epoch in (0, 1):
            one = lines(folder / "one" / "turns.0", 2)[2 * precision + epoch]
            assert lines(folder / "two" / "turns.0", 2)[2 * precision + epoch] == one
            assert lines(folder / "two" / "turns.1", 5)[2 * precision + epoch][:2] == one


def lines(path: Path, each: int) -> list[list[Any]]:
    """The turns of every epoch: their tokens."""
    tokens = [literal_eval(line.partition(" [")[0]) for line in path.read_text().splitlines()]
    return [tokens[start : start + each] for start in range(0, len(tokens), each)]


def test_a_checkpoint_holds_only_what_trains(folder: Path) -> None:
    for name in ("ddp_lora", "fsdp_lora", "grpo"):
        saved = torch.load(artifact(folder / "two", name) / "checkpoints" / "last.ckpt")
        assert len(saved["state_dict"]) > 0
        assert all("lora_" in key or "trainable_tokens_delta" in key for key in saved["state_dict"])


def test_killed_runs_end_in_the_bytes_of_an_unbroken_one(folder: Path) -> None:
    broken = ("ddp_lora", "fsdp_lora", "prm", "dpo", "ppo")
    path = experiment(folder, "broken", broken)
    only = [argument for name in broken for argument in ("--stage", name)]
    for number in range(len(broken)):  # one at a time, in whichever order they run
        killed = two_ranks(path, *only)
        assert killed.returncode == 137, killed.stderr
        assert "was killed (SIGKILL" in killed.stderr
        manifests = [list((folder / "broken" / "store").glob(f"{name}-*/manifest.json")) for name in broken]
        assert sum(map(len, manifests)) == number, "that which was killed is not complete, those before it are"
    run = two_ranks(path, *only)
    assert run.returncode == 0, run.stderr
    for name in broken:
        begun = (folder / "broken" / f"{name}.killed.epochs").read_text().split()
        assert begun.count("0") == 2  # by either rank, once: it went on, it did not start over
        files = (MODEL,) if name in ("prm", "dpo") else (MODEL, ADAPTER, *((CRITIC, HEAD) if name == "ppo" else ()))
        for file in files:
            unbroken = (artifact(folder / "two", name) / file).read_bytes()
            assert (artifact(folder / "broken", name) / file).read_bytes() == unbroken

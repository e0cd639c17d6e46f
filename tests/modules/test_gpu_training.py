"""Training as a GPU runs it: bfloat16, heads of 128 numbers, grouped queries, adapters, FSDP2, a reward model.

Each test has a twin on the CPU, where the same code is computed in the same types.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.equal_turns import Work, equal_turns, variety
from benchmarks.iterations import Given, questions_of
from benchmarks.qwen3_shapes import Shape, untrained
from callbacks.rollout import RolloutCallback
from datamodules.question_data import QuestionData
from modules.functional.credit import dual_granularity_credit
from modules.grpo import GRPO
from modules.lora import LoRA
from modules.optimizer import AdamW
from modules.reward_model.model import untrained_reward_model
from modules.rewards.process import process
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from modules.samplers.vllm.command import free_port
from modules.sharding import FSDP2, full_state

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPE = Shape(64, 128, layers=2, heads=4, kv_heads=2, head_dim=128, vocabulary=512, tied=False)
WORK = Work(questions=2, group=4, turns=2, turn_tokens=6, observation=5, prompt=8)
# What PyTorch refuses on CUDA while `trainer.deterministic` is true, of numbers of any type or of these.
REFUSED: dict[str, set[torch.dtype] | None] = {
    "aten.cumsum": {torch.float32, torch.bfloat16, torch.float64},
    "aten.cumprod": {torch.float32, torch.bfloat16, torch.float64},
    **dict.fromkeys(("aten.put_", "aten.put", "aten.histc", "aten.bincount", "aten.kthvalue", "aten.median"), None),
    **dict.fromkeys(("aten.nll_loss2d_forward", "aten.scatter_reduce_", "aten.max_unpool2d", "aten.grid_sampler_2d")),
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What a Trainer sets and joins for the whole process is over with the test."""
    yield
    torch.use_deterministic_algorithms(False)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Operations(TorchDispatchMode):
    """Counts what is computed and, of that, what a GPU refuses to compute deterministically."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.refused = 0, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        self.count += 1
        if name in REFUSED and (REFUSED[name] is None or args[0].dtype in (REFUSED[name] or ())):
            self.refused.add(name)
        return func(*args, **(kwargs or {}))


class Watch(Callback):
    """The gap to the sampler at the first update, and the operations of all."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.operations = Operations()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.operations.__enter__()

    def on_train_batch_end(self, *_: Any) -> None:
        self.operations.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.gaps.append(float(trainer.callback_metrics["logp_gap/mean"]))


def learnt(device: str, dtype: str, rewards: dict[str, Term], **settings: Any) -> tuple[GRPO, Watch]:
    """Two iterations of GRPO against the policy that it began as."""
    policy = untrained(SHAPE, dtype=dtype, device=device)
    trainer = {name: settings.pop(name) for name in ("strategy",) if name in settings}
    credit = partial(dual_granularity_credit, beta=0.3)
    learner = GRPO(
        policy, AdamW(1e-2), credit=credit, reference=policy, kl_weight=0.01, gradient_checkpointing=True, **settings
    )
    sampler = InProcessSampler(temperature=1.0, batch_size=4)
    rollout = RolloutCallback(equal_turns(policy.tokenizer, WORK), sampler, rewards=rewards)
    data = QuestionData(
        Given(questions_of(WORK, 2)), questions_per_iteration=WORK.questions, group_size=WORK.group, micro_batch=4
    )
    watch, quiet = (
        Watch(),
        dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False),
    )
    kind = "cpu" if device == "cpu" else "gpu"
    settings = {"precision": "bf16-mixed", "accelerator": kind, "gradient_clip_val": 1.0, "deterministic": True}
    fit = Trainer(max_epochs=2, devices=1, logger=False, callbacks=[watch, rollout], **quiet, **settings, **trainer)
    fit.fit(learner, datamodule=data)
    return learner, watch


@pytest.mark.parametrize("device", DEVICES)
def test_adapters_on_bfloat16_weights_and_a_reward_model(device: str) -> None:
    scorer = untrained_reward_model(untrained(SHAPE, device=device, seed=1), kinds=["query", "answer"])
    rewards = {
        "prm": Term(partial(process, scorer=scorer), level="step"),
        "variety": Term(variety, level="outcome"),
    }
    learner, watch = learnt(device, "bfloat16", rewards, lora=LoRA(trainable_tokens=False))
    assert watch.gaps[0] < 0.05, "in nats a token, of roundings alone"
    moved = [weight for name, weight in learner.named_parameters() if "lora_B" in name]
    assert all(weight.dtype == torch.float32 and weight.abs().max() > 0 for weight in moved)
    assert watch.operations.count > 1000
    assert not watch.operations.refused


@pytest.mark.parametrize("device", DEVICES)
def test_whole_weights_sharded_over_one_rank(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.optimizer._on_gpu", lambda weights: True)  # on the CPU too, which has the same kernel
    before = untrained(SHAPE, dtype="float32").model.state_dict()
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    learner, watch = learnt(device, "float32", {"variety": Term(variety, level="outcome")}, strategy=FSDP2())
    assert watch.gaps[0] < 0.05
    state = full_state(learner.model)
    assert state.keys() == before.keys()
    assert all(weight.dtype == torch.float32 for weight in state.values())
    name = "model.layers.0.mlp.up_proj.weight"
    assert not state[name].equal(before[name])
    assert not watch.operations.refused

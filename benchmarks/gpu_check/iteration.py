"""Iterations of GRPO on one GPU: LoRA with a reward model by part of the iteration, and whole weights under FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from benchmarks.equal_turns import Work
from benchmarks.gpu_check.decoding import LINEAR
from benchmarks.gpu_check.parts import Row, Size
from benchmarks.iterations import Iterations, peaks, train
from benchmarks.measures import Stopwatch
from benchmarks.qwen3_shapes import SHAPES, untrained
from modules.functional.credit import dual_granularity_credit
from modules.lora import LoRA
from modules.reward_model.model import untrained_reward_model
from modules.rewards.process import process
from modules.samplers.in_process import InProcessSampler
from modules.sharding import FSDP2, full_state


def iteration(size: Size) -> Iterator[Row]:
    """Rollout, scoring and update of the second of two iterations, as `configs/prorag/qwen3_8b.yaml` has them.

    Episodes have 5 turns of 150 sampled and 450 observed tokens.
    """
    shape = SHAPES[size.of("8B", "tiny")]
    policy = untrained(shape, device=size.device)
    scorer = untrained_reward_model(untrained(shape, device=size.device, seed=1), kinds=["query", "answer"])
    work = size.of(Work(2, 8, 5, 150, 450, prompt=100), Work(1, 4, 2, 4, 8, prompt=16))
    watched = Iterations(partial(process, scorer=scorer))
    train(
        policy,
        work,
        InProcessSampler(temperature=1.0, batch_size=16, kept_gb=20.0),
        watched,
        iterations=2,
        level="step",
        credit=partial(dual_granularity_credit, beta=0.3),
        micro_batch=1,
        learner={"reference": policy, "lora": LoRA(targets=LINEAR, trainable_tokens=False)}
        | {"gradient_checkpointing": True},
        precision="bf16-mixed",
    )
    yield from watched.rows[-1]


def fsdp2(size: Size) -> Iterator[Row]:
    """Two iterations and an export: whether a weight moved and stayed float32, and the peak memory."""
    policy = untrained(SHAPES[size.of("0.6B", "tiny")], dtype="float32", device=size.device)
    before = _feed_forward(policy.model.state_dict()).cpu().clone()
    work, watch = size.of(Work(2, 4, 2, 32, 32, 64), Work(1, 2, 2, 4, 8, 16)), Stopwatch()
    train(
        policy,
        work,
        InProcessSampler(temperature=1.0, batch_size=8),
        Iterations(),
        iterations=2,
        micro_batch=work.group,
        learner={"reference": policy, "kl_weight": 0.001, "gradient_checkpointing": True},
        precision="bf16-mixed",
        strategy=FSDP2(),
    )
    seconds, state = watch.read()["seconds"], full_state(policy.model)
    after = _feed_forward(state)
    row: Row = {"seconds": seconds, "tensors": len(state), "dtype": str(after.dtype).removeprefix("torch.")}
    yield row | {"moved": float((after - before).abs().max())} | peaks()


def _feed_forward(state: dict[str, Tensor]) -> Tensor:
    return next(weight for name, weight in state.items() if "layers.0.mlp" in name)

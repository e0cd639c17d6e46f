"""Iterations of GRPO on one GPU: LoRA with a reward model by part of the iteration, and whole weights under FSDP2."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from benchmarks.equal_turns import Work, equal_turns, variety
from benchmarks.gpu_check.decoding import LINEAR
from benchmarks.gpu_check.parts import Row, Size
from benchmarks.iterations import train
from benchmarks.measures import Stopwatch
from benchmarks.qwen3_shapes import SHAPES, untrained
from callbacks.rollout import RolloutCallback
from envs.interfaces import RewardContext
from envs.rollout import independent_groups
from envs.types import Episode, Question
from modules.functional.credit import dual_granularity_credit, grpo_credit
from modules.grpo import GRPO
from modules.lora import LoRA
from modules.optimizer import AdamW
from modules.reward_model.model import RewardModel, untrained_reward_model
from modules.rewards.process import process
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from modules.sharding import FSDP2, full_state


class Parts(Callback):
    """Seconds and peak memory of the parts of the last iteration.

    Args:
        scorer: the reward model.
        device: whose memory counts.
    """

    def __init__(self, scorer: RewardModel, device: str) -> None:
        self.rows: list[Row] = []
        self._scorer, self._device = scorer, device

    def sampling(self, *arguments: Any, **settings: Any) -> list[Episode]:
        """`independent_groups`, and the end of the rollout."""
        episodes = independent_groups(*arguments, **settings)
        self._end("rollout")
        return episodes

    def reward(self, episodes: Sequence[Episode], context: RewardContext) -> list[Tensor]:
        """The process reward, and the end of scoring."""
        scores = process(episodes, context, scorer=self._scorer)
        self._end("scoring")
        return scores

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.rows = []
        self._begin()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._end("update")

    def _begin(self) -> None:
        if self._device != "cpu":
            torch.cuda.reset_peak_memory_stats()  # of what is reserved too
        self._watch = Stopwatch()

    def _end(self, part: str) -> None:
        seconds = self._watch.read()["seconds"]
        self.rows.append({"part": part, "seconds": seconds} | _peaks(self._device))
        self._begin()


def iteration(size: Size) -> Iterator[Row]:
    """Rollout, scoring and update of the second of two iterations, as `configs/prorag/qwen3_8b.yaml` has them.

    Episodes have 5 turns of 150 sampled and 450 observed tokens. `peak_gb` is the most that was allocated during a
    part, all that was there before included, and `reserved_gb` what PyTorch had taken of the GPU for it.
    """
    shape = SHAPES[size.of("8B", "tiny")]
    policy = untrained(shape, device=size.device)
    scorer = untrained_reward_model(untrained(shape, device=size.device, seed=1), kinds=["query", "answer"])
    work = size.of(Work(2, 8, 5, 150, 450, prompt=100), Work(1, 4, 2, 4, 8, prompt=16))
    parts = Parts(scorer, size.device)
    rollout = RolloutCallback(
        equal_turns(policy.tokenizer, work),
        InProcessSampler(temperature=1.0, batch_size=16, kept_gb=20.0),
        rewards={"prm": Term(parts.reward, level="step")},
        sampling=partial(parts.sampling, pool=16),
    )
    learner = GRPO(
        policy,
        AdamW(1e-5),
        credit=partial(dual_granularity_credit, beta=0.3),
        reference=policy,
        lora=LoRA(targets=LINEAR, trainable_tokens=False),
        gradient_checkpointing=True,
    )
    _train(learner, rollout, parts, work, size, micro_batch=1)
    yield from parts.rows


def fsdp2(size: Size) -> Iterator[Row]:
    """Two iterations and an export: whether a weight moved and stayed float32, and the peak memory."""
    policy = untrained(SHAPES[size.of("0.6B", "tiny")], dtype="float32", device=size.device)
    before = _feed_forward(policy.model.state_dict()).cpu().clone()
    work = size.of(Work(2, 4, 2, 32, 32, 64), Work(1, 2, 2, 4, 8, 16))
    rollout = RolloutCallback(
        equal_turns(policy.tokenizer, work),
        InProcessSampler(temperature=1.0, batch_size=8),
        rewards={"variety": Term(variety)},
    )
    learner = GRPO(
        policy,
        AdamW(1e-4),
        credit=grpo_credit,
        reference=policy,
        kl_weight=0.001,
        gradient_checkpointing=True,
    )
    watch = Stopwatch()
    _train(learner, rollout, Callback(), work, size, micro_batch=work.group, strategy=FSDP2())
    seconds, state = watch.read()["seconds"], full_state(policy.model)
    after = _feed_forward(state)
    row: Row = {"seconds": seconds, "tensors": len(state), "dtype": str(after.dtype).removeprefix("torch.")}
    yield row | {"moved": float((after - before).abs().max())} | _peaks(size.device)


def _train(learner: GRPO, rollout: RolloutCallback, first: Callback, work: Work, size: Size, **settings: Any) -> None:
    questions = [Question(f"q{number}", f"w{number + 2}", ("",)) for number in range(2 * work.questions)]
    settings |= {"accelerator": size.of("gpu", "cpu"), "precision": "bf16-mixed", "gradient_clip_val": 1.0}
    train(learner, rollout, first, questions, work, iterations=2, **settings)


def _feed_forward(state: dict[str, Tensor]) -> Tensor:
    return next(weight for name, weight in state.items() if "layers.0.mlp" in name)


def _peaks(device: str) -> dict[str, float]:
    """Of a CPU the peak of the process so far, twice."""
    if device == "cpu":
        peak = reserved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    else:
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"peak_gb": peak / 1e9, "reserved_gb": reserved / 1e9}

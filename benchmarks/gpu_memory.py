"""The memory of reinforcement learning with a reward model on one card: GRPO of an 8B model with LoRA.

    python -m benchmarks.gpu_memory [--shape 8B] [--rows 16] [--questions 2]

One iteration after a first one, as a run has it: the rollout callback samples with the in-process sampler and scores
with a reward model of the same shape, and the Trainer updates adapters on frozen bfloat16 weights with gradient
checkpointing, as `configs/prorag/qwen3_8b.yaml` says. Episodes have 5 turns of 150 sampled and 450 observed tokens.
Weights are random. `peak_gb` is the most that was allocated during each part, what was there before it included, and
`reserved_gb` what PyTorch had taken of the card for it; on a CPU both are the peak of the process so far. `seconds`
says how long each part took.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from benchmarks.device_limits import device_name
from benchmarks.equal_turns import Work, equal_turns
from benchmarks.iterations import train
from benchmarks.measures import Stopwatch
from benchmarks.qwen3_shapes import SHAPES, untrained
from benchmarks.report import report
from callbacks.rollout import RolloutCallback
from envs.interfaces import RewardContext
from envs.rollout import independent_groups
from envs.types import Episode, Question
from modules.functional.credit import dual_granularity_credit
from modules.grpo import GRPO
from modules.lora import LoRA
from modules.optimizer import AdamW
from modules.reward_model.model import RewardModel, untrained_reward_model
from modules.rewards.process import process
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler

PACKAGES = ("torch", "transformers", "lightning", "peft")


class Parts(Callback):
    """Seconds and peak memory of the parts of the last iteration.

    Args:
        scorer: the reward model.
        device: whose memory counts.
    """

    def __init__(self, scorer: RewardModel, device: str) -> None:
        self.rows: list[dict[str, Any]] = []
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
            torch.cuda.reset_peak_memory_stats(self._device)  # of what is reserved too
        self._watch = Stopwatch()

    def _end(self, part: str) -> None:
        seconds = self._watch.read()["seconds"]
        if self._device != "cpu":
            peak = torch.cuda.max_memory_allocated(self._device)
            reserved = torch.cuda.max_memory_reserved(self._device)
        else:
            peak = reserved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.rows.append({"part": part, "seconds": seconds, "peak_gb": peak / 1e9, "reserved_gb": reserved / 1e9})
        self._begin()


def iteration(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The parts of the second of two iterations."""
    shape = SHAPES[options.shape]
    policy = untrained(shape, device=options.device)
    scorer = untrained_reward_model(untrained(shape, device=options.device, seed=1), kinds=["query", "answer"])
    work = Work(options.questions, 8, options.turns, options.turn_tokens, options.observation, prompt=100)
    parts = Parts(scorer, options.device)
    rollout = RolloutCallback(
        equal_turns(policy.tokenizer, work),
        InProcessSampler(temperature=1.0, batch_size=options.rows, kept_gb=20.0),  # as configs/prorag/qwen3_8b.yaml
        rewards={"prm": Term(parts.reward, level="step")},
        sampling=partial(parts.sampling, pool=options.rows),
    )
    learner = GRPO(
        policy,
        AdamW(1e-5),
        credit=partial(dual_granularity_credit, beta=0.3),
        reference=policy,
        lora=LoRA(trainable_tokens=False),
        gradient_checkpointing=True,
    )
    questions = [Question(f"q{number}", f"w{number + 2}", ("",)) for number in range(2 * work.questions)]
    settings: dict[str, Any] = {"accelerator": "cpu" if options.device == "cpu" else "gpu", "precision": "bf16-mixed"}
    settings |= {"micro_batch": options.micro_batch, "gradient_clip_val": 1.0}
    train(learner, rollout, parts, questions, work, iterations=2, **settings)
    return parts.rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8B")
    parser.add_argument("--questions", type=int, default=2, help="of an iteration, 8 episodes each")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--turn-tokens", type=int, default=150)
    parser.add_argument("--observation", type=int, default=450)
    parser.add_argument("--rows", type=int, default=16, help="episodes under way at once")
    parser.add_argument("--micro-batch", type=int, default=1, help="episodes of a backward pass; the config's, by rank")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args(arguments)
    rows = iteration(options)
    facts: dict[str, Any] = {"device": device_name(options.device), "parameters": SHAPES[options.shape].parameters}
    if options.device != "cpu":
        facts["memory_of_device_gb"] = torch.cuda.get_device_properties(options.device).total_memory / 1e9
    settings = {name: str(value) for name, value in vars(options).items()}
    report(rows, packages=PACKAGES, json_file=options.json, settings=settings, **facts)


if __name__ == "__main__":
    main()

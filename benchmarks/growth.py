"""How the cost of an iteration of GRPO grows with the group, the turns, the context and the model.

    python -m benchmarks.growth [--only turns] [--turns 2 4 8 16]

An iteration is that of training: the rollout callback samples with the in-process sampler and scores with a trivial
reward, and the Trainer updates an untrained model. What does not grow stays as in `Size`. Every turn samples
`turn_tokens` tokens and is followed by `observation` given ones, so that the work is known. `kept` is the sampler as it
is; `resend` forgets an episode after each turn, so that the next one feeds the whole context anew. An exponent is the
slope of log cost over log size by least squares: 1 is linear. Costs are CPU seconds of this process (medians of the
iterations after the first), which depend less than the clock on what else the machine does; `fed` counts the positions
that went through the model while sampling, and does not depend on the machine at all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from benchmarks.equal_turns import Work, equal_turns, variety
from benchmarks.iterations import train
from benchmarks.report import report, table
from callbacks.rollout import RolloutCallback
from envs.requests import Request
from envs.types import Question, Turn
from modules.functional.credit import grpo_credit
from modules.grpo import GRPO
from modules.optimizer import AdamW
from modules.policy import random_policy
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler

TOKENIZER = Path(__file__).parent.parent / "assets" / "world_base"
PACKAGES = ("torch", "transformers", "lightning", "numpy")


@dataclass(frozen=True)
class Size(Work):
    """What an iteration consists of, and the model."""

    questions: int = 2
    group: int = 4
    turns: int = 4
    turn_tokens: int = 16
    observation: int = 48
    hidden: int = 128
    layers: int = 4


class Resending(InProcessSampler):
    """Keeps nothing of an episode between its turns."""

    def collect(self) -> list[tuple[Request, Turn]]:
        finished = super().collect()
        self.release([request.episode for request, _ in finished])
        return finished


class Costs(Callback):
    """What each iteration took: CPU seconds and clock seconds in all, CPU seconds of its rollout, positions fed in it.

    It stands before the rollout callback, so an iteration begins with it; its update begins with the first batch.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._fed = 0

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        pl_module.model.get_input_embeddings().register_forward_pre_hook(self._count)

    def _count(self, _: Any, ids: tuple[torch.Tensor, ...]) -> None:
        self._fed += ids[0].numel()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._fed, self._cpu, self._clock = 0, time.process_time(), time.perf_counter()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.rows.append({"fed": self._fed, "rollout_cpu_s": time.process_time() - self._cpu})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.rows[-1] |= {"cpu_s": time.process_time() - self._cpu, "clock_s": time.perf_counter() - self._clock}


def measure(size: Size, sampler: InProcessSampler, iterations: int) -> dict[str, float]:
    """Medians over `iterations` iterations after a first one, of the whole iteration."""
    policy = random_policy(
        TOKENIZER,
        hidden_size=size.hidden,
        layers=size.layers,
        feed_forward=3 * size.hidden,
        max_length=8192,
        device="cpu",
    )
    learner = GRPO(policy, AdamW(1e-6), credit=partial(grpo_credit), temperature=1.0)
    costs = Costs()
    rollout = RolloutCallback(equal_turns(TOKENIZER, size), sampler, rewards={"variety": Term(variety)})
    questions = [Question(f"q{i}", f"q{i}", ("a",)) for i in range(size.questions * (iterations + 1))]
    train(learner, rollout, costs, questions, size, iterations=iterations + 1, accelerator="cpu")
    medians = {name: statistics.median(row[name] for row in costs.rows[1:]) for name in costs.rows[0]}
    embeddings: Any = policy.model.get_input_embeddings()
    parameters = sum(p.numel() for p in policy.model.parameters()) - embeddings.weight.numel()
    return {"parameters": float(parameters)} | medians


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def main() -> None:
    """Measure, print the tables and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=("group", "turns", "context", "model"))
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--turns", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 256, 512, 1024], help="tokens of the prompt")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128, 256, 512], help="width of the model")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = {
        "group": [replace(Size(), group=value) for value in options.groups],
        "turns": [replace(Size(), turns=value) for value in options.turns],
        "context": [replace(Size(), prompt=value) for value in options.prompts],
        "model": [replace(Size(), hidden=value) for value in options.hidden],
    }
    rows, exponents = [], []
    for what in options.only or sizes:
        for name in ("kept", "resend") if what == "turns" else ("kept",):
            measured = [_row(what, size, name, options.iterations) for size in sizes[what]]
            rows += measured
            xs = [row["size"] for row in measured]
            costs = {cost: exponent(xs, [row[cost] for row in measured]) for cost in ("cpu_s", "rollout_cpu_s", "fed")}
            exponents.append({"what": what, "sampler": name} | costs)
    print(table(exponents), end="\n\n")
    settings = {"iterations": options.iterations, "threads": options.threads} | asdict(Size())
    report(rows, packages=PACKAGES, json_file=options.json, settings=settings, exponents=exponents)


def _row(what: str, size: Size, sampler: str, iterations: int) -> dict[str, Any]:
    made = (Resending if sampler == "resend" else InProcessSampler)(temperature=1.0)
    costs = measure(size, made, iterations)
    values = {"group": size.group, "turns": size.turns, "context": size.prompt, "model": costs.pop("parameters")}
    return {"what": what, "sampler": sampler, "size": values[what]} | costs


if __name__ == "__main__":
    main()

"""Cost of an iteration of GRPO by the size of group, turns, context and model, and the exponents of its growth.

    python -m benchmarks.growth [--only turns] [--repeats 3]

An iteration is that of training, on the work of `WORK` but for what grows. `resend` forgets an episode after each turn,
so that the next one feeds the whole context again; `kept` is the sampler as it is. An exponent is the slope of log cost
over log size by least squares: 1 is linear. Costs are CPU seconds of this process (medians of the iterations after the
first), which depend less than the clock on what else the machine does; `fed` counts the positions that went through the
model while sampling, over all iterations, and does not depend on the machine at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.equal_turns import WORLD_BASE, Work
from benchmarks.iterations import Iterations, train
from benchmarks.report import medians, read_options, report, table
from envs.requests import Request
from envs.types import Turn
from modules.policy import random_policy
from modules.samplers.in_process import InProcessSampler

WORK = Work(questions=2, group=4, turns=4, turn_tokens=16, observation=48)
HIDDEN = 128
SIZES = {
    "group": ("group", [2, 4, 8, 16]),
    "turns": ("turns", [2, 4, 8, 16]),
    "context": ("prompt", [128, 256, 512, 1024]),
    "model": ("hidden", [64, 128, 256, 512]),
}


class Resending(InProcessSampler):
    """Keeps nothing of an episode between its turns."""

    def collect(self) -> list[tuple[Request, Turn]]:
        finished = super().collect()
        self.release([request.episode for request, _ in finished])
        return finished


def measure(work: Work, sampler: InProcessSampler, iterations: int, hidden: int = HIDDEN) -> dict[str, float]:
    """Weights without the embedding, and medians over `iterations` iterations after a first one."""
    policy = random_policy(WORLD_BASE, hidden_size=hidden, feed_forward=3 * hidden, max_length=8192, device="cpu")
    embedding: Any = policy.model.get_input_embeddings()
    fed: list[int] = []

    def count(module: Any, ids: tuple[Tensor, ...]) -> None:
        if not policy.model.training:
            fed.append(ids[0].numel())

    embedding.register_forward_pre_hook(count)
    watched = Iterations()
    train(policy, work, sampler, watched, iterations=iterations + 1)
    costs = [{row["part"]: row["cpu_seconds"] for row in rows} for rows in watched.rows[1:]]
    parts = medians([{"cpu_s": sum(cost.values()), "rollout_cpu_s": cost["rollout"]} for cost in costs])
    weights = sum(weight.numel() for weight in policy.model.parameters()) - embedding.weight.numel()
    return {"parameters": float(weights)} | parts | {"fed": float(sum(fed))}


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables and the JSON."""
    options = read_options(__doc__, arguments, only=tuple(SIZES))
    rows, exponents = [], []
    for what in options.only:
        name, values = SIZES[what]
        for way, made in {"kept": InProcessSampler, "resend": Resending}.items():
            if way == "resend" and what != "turns":
                continue
            found: list[dict[str, float]] = []
            for value in values:
                work, hidden = (WORK, value) if what == "model" else (replace(WORK, **{name: value}), HIDDEN)
                found.append(measure(work, made(temperature=1.0), options.repeats, hidden))
            sizes = [costs["parameters"] for costs in found] if what == "model" else values
            rows += [{"what": what, "sampler": way, "size": n} | costs for n, costs in zip(sizes, found, strict=True)]
            slopes = {cost: exponent(sizes, [row[cost] for row in found]) for cost in ("cpu_s", "rollout_cpu_s", "fed")}
            exponents.append({"what": what, "sampler": way} | slopes)
    print(table(exponents), end="\n\n")
    report(rows, options, exponents=exponents)


if __name__ == "__main__":
    main()

"""How fast models of Qwen3's shape decode, beside the limit that memory bandwidth sets, measured in the same run.

    python -m benchmarks.gpu_decode [--shapes 0.6B 1.7B 8B] [--rows 1 16 64] [--sampler vllm]

A decoding step must read every weight once and the keys and values of all its rows; the bandwidth, measured by a large
copy, divided by these bytes is the most steps a second that there can be, and `share` is how much of it is reached.
Weights are random, which changes no speed. All rows sample `tokens` tokens at temperature 1 after `prompt` tokens. The
time of the same work with one token is taken off, which leaves decoding: `tokens` less one a row. Medians of repeats.

`--sampler vllm` measures the suite's vLLM sampler in place of the one in process (`make engine`).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.device_limits import copied_bytes_per_s, device_name
from benchmarks.equal_turns import Work, equal_turns
from benchmarks.measures import Stopwatch
from benchmarks.qwen3_shapes import SHAPES, Shape, untrained
from benchmarks.report import report
from envs.interfaces import Sampler
from envs.rollout import rollout
from envs.types import Episode, Question
from modules.policy import Policy
from modules.samplers.in_process import InProcessSampler
from modules.samplers.vllm.command import installed_version
from modules.samplers.vllm.engine import ENGINE_PYTHON, VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler

PACKAGES = ("torch", "transformers")


def decoding(sampler: Sampler, policy: Policy, work: Work, repeats: int) -> dict[str, float]:
    """Median seconds of decoding, without the reading of the prompts, and the tokens that it decoded."""
    first = replace(work, turn_tokens=1)
    seconds, tokens = [], 0
    sampler.hold([Episode(Question("held", "", ("",)), ())])  # merged weights last while an episode is held
    for repeat in range(repeats + 1):
        both = [_run(sampler, policy, one, repeat) for one in (work, first)]
        if repeat:  # the first one warms up
            seconds.append(both[0][0] - both[1][0])
            tokens = both[0][1] - both[1][1]
    return {"seconds": statistics.median(seconds), "tokens": tokens}


def _run(sampler: Sampler, policy: Policy, work: Work, iteration: int) -> tuple[float, int]:
    questions = [Question(f"q{row}", f"w{row + 2}", ("",)) for row in range(work.questions)]
    environment, watch = equal_turns(policy.tokenizer, work), Stopwatch()
    episodes = rollout(environment, sampler, questions, seed=0, iteration=iteration, pool=work.questions)
    return watch.read()["seconds"], sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)


def limit(shape: Shape, work: Work, bandwidth: float, width: int) -> float:
    """Tokens a second at most, of all rows together, at the mean context."""
    context = work.prompt + work.turn_tokens // 2
    return work.questions * bandwidth / shape.bytes_a_step([context] * work.questions, width)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.6B", "1.7B", "8B"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--prompt", type=int, default=448)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--sampler", choices=("in process", "vllm"), default="in process")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args(arguments)
    bandwidth = copied_bytes_per_s(options.device, 2**30 if options.device != "cpu" else 2**26)
    width = {"float32": 4, "bfloat16": 2}[options.dtype]
    rows: list[dict[str, Any]] = []
    for name in options.shapes:
        shape = SHAPES[name]
        there = options.device if options.sampler == "in process" else "cpu"  # vLLM needs the card for itself
        policy = untrained(shape, dtype=options.dtype, device=there)
        sampler = _sampler(options, policy, shape)
        for count in options.rows:
            work = Work(count, 1, 1, options.tokens, 1, options.prompt)
            figures = decoding(sampler, policy, work, options.repeats)
            most = limit(shape, work, bandwidth, width)
            per_s = figures["tokens"] / figures["seconds"]
            row = {"shape": name, "rows": count} | figures | {"tokens_per_s": per_s, "limit_tokens_per_s": most}
            rows.append(row | {"share": round(per_s / most, 3)})
        if isinstance(sampler, VLLMSampler):
            sampler.engine.close()
        del sampler, policy
    engine = {"vllm": installed_version(ENGINE_PYTHON)} if options.sampler == "vllm" else {}
    facts = {"device": device_name(options.device), "gb_per_s": bandwidth / 1e9, "peers": engine}
    settings = {name: str(value) for name, value in vars(options).items()}
    report(rows, packages=PACKAGES, json_file=options.json, settings=settings, **facts)


def _sampler(options: argparse.Namespace, policy: Policy, shape: Shape) -> Sampler:
    rows, context = max(options.rows), options.prompt + options.tokens + 1
    if options.sampler == "in process":
        return InProcessSampler(policy, temperature=1.0, batch_size=rows)
    gib = 1 + shape.cache_bytes(rows * (context + 32)) // 2**30
    engine = VLLMEngine(context, dtype=options.dtype, rows=rows, cache_gib=gib)
    return VLLMSampler(engine, policy, temperature=1.0)


if __name__ == "__main__":
    main()

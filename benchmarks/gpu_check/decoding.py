"""Decoding speed of models of Qwen3's shapes: against the limit of memory bandwidth, and with LoRA.

A decoding step must read every weight once and the keys and values of all its rows; the bandwidth, measured by a large
copy, divided by these bytes is the most steps a second that there can be. Weights are random, which changes no speed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

import torch
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from benchmarks.equal_turns import Work, equal_turns
from benchmarks.gpu_check.device import copied_bytes_per_s
from benchmarks.gpu_check.parts import Row, Size
from benchmarks.measures import Stopwatch
from benchmarks.qwen3_shapes import SHAPES, Shape, untrained
from envs.interfaces import Sampler
from envs.packing import collate, pack
from envs.rollout import rollout
from envs.types import Episode, Question
from modules.lora import LoRA
from modules.policy import Policy
from modules.samplers.in_process import InProcessSampler
from modules.sequence_logprobs import sequence_logprobs

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def decoding(size: Size) -> Iterator[Row]:
    """Tokens a second and the reached share of the limit, by shape and rows."""
    for name in size.of(("0.6B", "1.7B"), ("tiny",)):
        yield from _of_shape(name, size.of((1, 16, 64), (1, 2)), size)


def decoding_8b(size: Size) -> Iterator[Row]:
    """The same of Qwen3-8B's shape."""
    yield from _of_shape(size.of("8B", "tiny"), size.of((16, 64), (2,)), size)


def _of_shape(name: str, rows: tuple[int, ...], size: Size) -> Iterator[Row]:
    bandwidth = copied_bytes_per_s(size)
    policy, shape = untrained(SHAPES[name], device=size.device), SHAPES[name]
    sampler = InProcessSampler(policy, temperature=1.0, batch_size=max(rows))
    for count in rows:
        work = one_turn(count, size)
        figures = decoded(sampler, policy, work, repeats=size.of(2, 1))
        per_s, most = figures["tokens"] / figures["seconds"], limit(shape, work, bandwidth)
        row = {"shape": name, "rows": count} | figures | {"tokens_per_s": per_s, "limit_tokens_per_s": most}
        yield row | {"share": round(per_s / most, 3), "gb_per_s": bandwidth / 1e9}


def adapters(size: Size) -> Iterator[Row]:
    """Tokens a second of 16 rows, and the difference of log-probs between sampling and training."""
    policy, work = untrained(SHAPES[size.of("1.7B", "tiny")], device=size.device), one_turn(size.of(16, 2), size)
    for lora in (False, True):
        if lora:
            LoRA(trainable_tokens=False, targets=LINEAR).apply(policy)
            for name, weight in policy.model.named_parameters():
                if "lora_B" in name:  # zeros would change nothing
                    torch.nn.init.normal_(weight, std=0.01)
        sampler = InProcessSampler(policy, temperature=1.0, batch_size=work.questions)
        figures = decoded(sampler, policy, work, repeats=size.of(2, 1))
        gaps = _logp_gaps(policy, _sampled(sampler, policy, work, 1))
        row: Row = {"adapters": "LoRA, rank 16" if lora else "none", "rows": work.questions}
        row |= figures | {"tokens_per_s": figures["tokens"] / figures["seconds"]}
        yield row | {"mean_logp_gap": float(gaps.mean()), "largest_logp_gap": float(gaps.max())}


def decoded(sampler: Sampler, policy: Policy, work: Work, repeats: int) -> dict[str, float]:
    """Median seconds of decoding, without the reading of the prompts, and the tokens that it decoded."""
    seconds, tokens = [], 0
    sampler.hold([Episode(Question("held", "", ("",)), ())])  # merged weights last while an episode is held
    for repeat in range(repeats + 1):
        both: list[tuple[float, int]] = []
        for part in (work, replace(work, turn_tokens=1)):
            watch = Stopwatch()
            episodes = _sampled(sampler, policy, part, repeat)
            both.append((watch.read()["seconds"], sum(len(turn.action_ids) for one in episodes for turn in one.turns)))
        if repeat:  # the first one warms up
            seconds.append(both[0][0] - both[1][0])
            tokens = both[0][1] - both[1][1]
    return {"seconds": statistics.median(seconds), "tokens": tokens}


def limit(shape: Shape, work: Work, bandwidth: float) -> float:
    """Tokens a second at most, of all rows together, at the mean context."""
    context = work.prompt + work.turn_tokens // 2
    return work.questions * bandwidth / shape.bytes_a_step([context] * work.questions)


def one_turn(rows: int, size: Size) -> Work:
    """One turn a row, after a prompt: the work that decoding is measured on."""
    return Work(rows, 1, 1, size.of(64, 24), 1, size.of(448, 16))


def _sampled(sampler: Sampler, policy: Policy, work: Work, iteration: int) -> list[Episode]:
    questions = [Question(f"q{row}", f"w{row + 2}", ("",)) for row in range(work.questions)]
    environment = equal_turns(policy.tokenizer, work)
    return rollout(environment, sampler, questions, seed=0, iteration=iteration, pool=work.questions)


def _logp_gaps(policy: Policy, episodes: list[Episode]) -> Tensor:
    """Differences of sampled tokens' log-probs between sampling and training in bf16-mixed."""
    gaps: list[Tensor] = []
    for episode in episodes:
        batch = collate([pack(sequence) for sequence in episode.sequences()])
        batch = move_data_to_device(batch, policy.model.device)
        with torch.no_grad(), torch.autocast(policy.model.device.type, torch.bfloat16):
            gaps.append((sequence_logprobs(policy.model, batch) - batch.logps_BT)[batch.loss_mask_BT].abs())
    return torch.cat(gaps)

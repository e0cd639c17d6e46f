"""The suite's own iteration of GRPO, with the in-process sampler or vLLM: callback, credit and Trainer as in a run."""

from __future__ import annotations

import math
import os

from benchmarks.equal_turns import Work
from benchmarks.iterations import Iterations, train
from benchmarks.peers.figures import Settings, Trained, run_side
from envs.interfaces import Sampler
from modules.decoder.kv_cache import kv_shape
from modules.policy import Policy
from modules.samplers.in_process import InProcessSampler
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler


def sampler_of(policy: Policy, work: Work, settings: Settings) -> Sampler:
    """In process, or a vLLM server on as many cores as the other sides have threads."""
    if settings["side"] == "suite":
        return InProcessSampler(temperature=1.0, batch_size=work.episodes)
    cores = sorted(os.sched_getaffinity(0))[: settings["threads"]]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    gib = 1 + cache_bytes(policy, work) // 2**30
    engine = VLLMEngine(work.context, dtype=settings["dtype"], rows=work.episodes, cache_gib=gib)
    return VLLMSampler(engine, policy, temperature=1.0)


def cache_bytes(policy: Policy, work: Work) -> int:
    """Keys and values of all episodes, with a block of 32 tokens to spare for each."""
    config = policy.model.config.get_text_config()
    a_token = 2 * config.num_hidden_layers * math.prod(kv_shape(config)) * policy.model.dtype.itemsize
    return work.episodes * (work.context + 32) * a_token


def trained(policy: Policy, work: Work, settings: Settings) -> Trained:
    """Iterations of `modules.grpo:GRPO`."""
    watched = Iterations(greedy_first=True)
    # vLLM's log-probs in bfloat16 are not the trainer's.
    learner = {"importance_cap": 2.0} if settings["dtype"] == "bfloat16" else {}
    count, micro = 1 + settings["repeats"], settings["micro_batch"]
    sampler = sampler_of(policy, work, settings)
    train(policy, work, sampler, watched, iterations=count, micro_batch=micro, learner=learner)
    seconds = [
        (rows[0]["seconds"], sum(row["seconds"] for row in rows), sum(row["cpu_seconds"] for row in rows))
        for rows in watched.rows
    ]
    return watched.episodes, seconds


if __name__ == "__main__":
    run_side(trained)

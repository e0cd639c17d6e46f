"""One way of sampling the episodes of `benchmarks.rollouts`, in a process of its own."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.equal_turns import Work, equal_turns
from benchmarks.measures import Stopwatch
from benchmarks.resending import LibraryGenerate
from benchmarks.ways import Message, Turns
from datamodules.sources.world_questions import WorldQuestions
from envs.interfaces import Sampler
from envs.rollout import rollout
from envs.sampling import Greedy
from envs.types import Question
from modules.decoder.kv_cache import kv_shape
from modules.policy import Policy, load_policy
from modules.samplers.in_process import InProcessSampler
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler

Made = Callable[[Policy, Mapping[str, Any]], Sampler]


def in_process(policy: Policy, settings: Mapping[str, Any]) -> Sampler:
    """The suite's own sampler."""
    return InProcessSampler(policy, temperature=settings["temperature"], batch_size=settings["rows"])


def vllm(policy: Policy, settings: Mapping[str, Any]) -> Sampler:
    """The suite's sampler behind a vLLM server, which is started here on as many cores as others have threads."""
    cores = sorted(os.sched_getaffinity(0))[: settings["threads"]]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    needed = cache_bytes(policy, settings["rows"] * (settings["context"] + 32), settings["dtype"])  # whole blocks
    gib = 1 + needed // 2**30
    engine = VLLMEngine(settings["context"], dtype=settings["dtype"], rows=settings["rows"], cache_gib=gib)
    return VLLMSampler(engine, policy, temperature=settings["temperature"])


def cache_bytes(policy: Policy, tokens: int, dtype: str) -> int:
    """Keys and values of so many tokens."""
    config = policy.model.config.get_text_config()
    return tokens * 2 * config.num_hidden_layers * math.prod(kv_shape(config)) * getattr(torch, dtype).itemsize


def generate(policy: Policy, settings: Mapping[str, Any]) -> Sampler:
    """transformers' `generate`."""
    return LibraryGenerate(policy, settings["temperature"])


WAYS: dict[str, Made] = {"in process": in_process, "vllm": vllm, "generate": generate}


class Sampling:
    """Runs pieces of work with a sampler: `{work: …, greedy: …}`.

    Args:
        sampler: of the policy of `settings`.
        settings: model, corpus and questions, as `benchmarks.rollouts` writes them.
    """

    def __init__(self, sampler: Sampler, settings: Mapping[str, Any]) -> None:
        self.sampler, self.settings = sampler, settings
        self._iteration = 0

    def __call__(self, message: Message) -> Message:
        """Sample the episodes; figures of the run, or with `greedy` the ids of every turn.

        Each run samples other random numbers.
        """
        work = Work(**message["work"])
        environment = equal_turns(self.settings["model"], work, Path(self.settings["world"]) / "data" / "corpus.jsonl")
        questions = world_questions(self.settings["world"])[: work.questions]
        sampler = Greedy(self.sampler) if message["greedy"] else self.sampler
        self._iteration += 1
        if isinstance(self.sampler, VLLMSampler):  # an iteration of training begins with new weights and no prefixes
            self.sampler.load(self.sampler.policy)
            self.sampler.engine.make_ready()
        watch, number = Stopwatch(), self._iteration
        episodes = rollout(
            environment, sampler, questions, seed=0, samples=work.group, iteration=number, pool=work.episodes
        )
        seconds = watch.read()
        if message["greedy"]:
            return {"ids": [[turn.action_ids for turn in episode.turns] for episode in episodes]}
        tokens = sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
        return {"tokens": tokens, **seconds, "retrieval_s": environment.seconds}


def world_questions(world: str) -> list[Question]:
    """Questions of the world that the benchmark made."""
    return list(WorldQuestions(Path(world), "rl"))


def policy_of(settings: Mapping[str, Any]) -> Policy:
    """The policy that is measured, with the threads of the settings."""
    torch.set_num_threads(settings["threads"])
    return load_policy(settings["model"], dtype=settings["dtype"], device=settings["device"])


def main() -> None:
    """Sample whenever it is this way's turn."""
    turns, settings = Turns(), json.loads(sys.argv[1])
    turns.serve(Sampling(WAYS[settings["way"]](policy_of(settings), settings), settings))


if __name__ == "__main__":
    main()

"""How fast the agent loop is: 500 questions of the embedded world with an untrained tiny model, which is the slowest
case, since it never answers and uses up every turn.

    python -m benchmarks.rollout [--questions 500] [--threads 2]

The peer is the same loop with `transformers`' own `generate`, which feeds the whole context anew each turn. Prints one
JSON object: seconds (median of the repeats), sampled tokens a second, the ratio to the peer in the same process, peak
memory, versions.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from datamodules.sources.world_questions import WorldQuestions
from datamodules.world_data import WorldData
from envs.interfaces import Sampler
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.types import Episode, Limits, Turn
from modules.policy import Policy, random_policy
from modules.samplers.in_process import InProcessSampler

LIMITS = Limits(turns=11, turn_tokens=48, observation_tokens=320, total_tokens=1024)


class LibraryGenerate:
    """The peer: `model.generate` over left-padded contexts, greedy, nothing kept between turns."""

    temperature, top_p = 0.0, 1.0

    def __init__(self, policy: Policy, batch_size: int) -> None:
        self.policy, self.batch_size = policy, batch_size
        self._open: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self._open += requests

    def collect(self) -> list[tuple[Request, Turn]]:
        batch, self._open = self._open[: self.batch_size], self._open[self.batch_size :]
        return list(zip(batch, self._batch(batch), strict=True))

    def release(self, episodes: Sequence[Episode]) -> None:
        """Nothing is kept."""

    def load(self, policy: Policy) -> None:
        self.policy = policy

    def _batch(self, requests: Sequence[Request]) -> list[Turn]:
        tokenizer = self.policy.tokenizer
        prefixes = [request.prefix() for request in requests]
        width = max(map(len, prefixes))
        ids = torch.tensor([[0] * (width - len(prefix)) + list(prefix) for prefix in prefixes])
        mask = torch.tensor([[0] * (width - len(prefix)) + [1] * len(prefix) for prefix in prefixes])
        generated = self.policy.model.generate(  # pyright: ignore[reportCallIssue]
            ids,
            attention_mask=mask,
            max_new_tokens=max(request.max_tokens or 0 for request in requests),
            do_sample=False,
            eos_token_id=[*map(tokenizer.convert_tokens_to_ids, requests[0].stop), tokenizer.eos_token_id],
            pad_token_id=tokenizer.pad_token_id,
        )[:, width:]
        turns = []
        for request, row in zip(requests, generated.tolist(), strict=True):
            sampled = tuple(row[: request.max_tokens])
            text = str(tokenizer.decode(list(sampled)))
            turns.append(request.turn(sampled, (0.0,) * len(sampled), "length", text))
        return turns


def measure(sampler: Sampler, environment: RetrievalEnvironment, questions: list, repeats: int) -> tuple[float, int]:
    """Median seconds of a rollout over the questions, and the tokens sampled in one."""
    seconds, tokens = [], 0
    for _ in range(repeats):
        start = time.perf_counter()
        episodes = rollout(environment, sampler, questions, seed=0, pool=128)
        seconds.append(time.perf_counter() - start)
        tokens = sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
    return statistics.median(seconds), tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        world = Path(name)
        maker = WorldData(hops=(1, 2, 2, 3), questions=2400, splits={"sft": 1900, "test": options.questions})
        maker.make(world, seed=0, rank=0, world_size=1)
        questions = list(WorldQuestions(world, "test"))[: options.questions]
        retriever = BM25(world / "data" / "corpus.jsonl")
        environment = RetrievalEnvironment(ProRAG(world / "tokenizer", instruction=""), retriever, limits=LIMITS)
        policy = random_policy(world / "tokenizer", device="cpu")
        ours, tokens = measure(InProcessSampler(policy, batch_size=128), environment, questions, options.repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        peer, _ = measure(LibraryGenerate(policy, 128), environment, questions, 1)
    report = {
        "questions": len(questions),
        "threads": options.threads,
        "seconds": round(ours, 1),
        "sampled_tokens": tokens,
        "tokens_per_s": round(tokens / ours),
        "peak_rss_mb": round(peak),
        "peer_seconds": round(peer, 1),
        "ratio": round(ours / peer, 2),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

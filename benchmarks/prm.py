"""How fast a process reward model scores finished episodes: one pass over each, against one forward pass a step.

    python -m benchmarks.prm [--model assets/world_base] [--episodes 16] [--steps 8]

Episodes are made up of random tokens: a prompt of 60 (`--prompt`), then steps of 40 sampled and 110 observed tokens.
`ours` is `RewardModel.score`, which reads all steps of an episode in one pass, on a CPU by the forward pass of
sampling. The peers run the model of transformers anew on everything up to each step's end, as the released code of such
models does: `a step at a time` one after the other, `steps in batches` as many at once as fit into ours. All three
score with the same weights, alternating in one process; `gap` is the largest difference of a score from ours. Ratios
above 1 say that ours is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.made_up_episodes import WORLD_BASE, load_model, made_up_episodes
from benchmarks.measures import alternating, ratios
from benchmarks.report import report
from envs.packing import by_length
from envs.score_positions import ScoredSequence, collate_scored, scored_sequences
from envs.text import load_tokenizer
from envs.types import Episode
from modules.policy import Policy
from modules.reward_model import model as reward_model
from modules.reward_model.model import RewardModel, to_device, untrained_reward_model


def prefixes(episodes: Sequence[Episode]) -> list[ScoredSequence]:
    """For each step a sequence that ends with it and is scored there alone."""
    return [
        replace(sequence, ids=sequence.ids[: position.observed + 1], positions=(position,))
        for episode in episodes
        for sequence in scored_sequences(episode)
        for position in sequence.positions
    ]


@torch.inference_mode()
def one_forward_a_step(scorer: RewardModel, episodes: Sequence[Episode], tokens: int) -> Tensor:
    """`[P]`: scores of all steps of all episodes, each from a sequence of its own; `tokens` of a pass."""
    steps = prefixes(episodes)
    scores = torch.zeros(len(steps))
    for part in by_length(range(len(steps)), length=lambda number: len(steps[number].ids), tokens=tokens):
        batch = to_device(collate_scored([steps[number] for number in part]), scorer.policy.model.device)
        scores[part] = scorer.raw_scores(batch).cpu()
    return scores


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(WORLD_BASE), help="folder of a causal language model")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8, help="of each episode")
    parser.add_argument("--prompt", type=int, default=60, help="tokens of the prompt, which every step is read after")
    parser.add_argument(
        "--features", action=argparse.BooleanOptionalAction, default=True, help="read features of steps"
    )
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = load_model(options.model, options.dtype, options.device)
    vocabulary = model.get_input_embeddings().weight.shape[0]  # pyright: ignore
    turns = (options.steps, options.steps)
    episodes = made_up_episodes(options.episodes, int(vocabulary), turns=turns, prompt=options.prompt)
    kinds = sorted({step.kind for episode in episodes for step in episode.steps}) if options.features else None
    scorer = untrained_reward_model(Policy(model, load_tokenizer(options.model)), kinds=kinds)
    for weight in (
        scorer.head.linear.weight,
        *([] if (features := scorer.head.features) is None else [features.weight_KF]),
    ):
        torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(0))
    scorer.head.to(model.device)
    ways = {
        "ours": lambda: torch.cat(scorer.score(episodes)),
        "a step at a time": lambda: one_forward_a_step(scorer, episodes, 1),
        "steps in batches": lambda: one_forward_a_step(scorer, episodes, reward_model._TOKENS),
    }
    times = alternating(ways, options.repeats)
    scores = {name: run() for name, run in ways.items()}
    read = {name: sum(len(step.ids) for step in prefixes(episodes)) for name in ways}
    read["ours"] = sum(len(sequence.ids) for episode in episodes for sequence in scored_sequences(episode))
    rows: list[dict[str, Any]] = []
    for name, taken in times.items():
        gap = float((scores[name] - scores["ours"]).abs().max())
        row = {"way": name, "steps": len(scores[name]), "tokens_read": read[name]} | taken
        row |= {"steps_per_s": len(scores[name]) / taken["seconds"], "gap": gap}
        rows.append(row | ({} if name == "ours" else ratios(times["ours"], taken)))
    settings = {name: str(value) for name, value in vars(options).items()}
    report(rows, packages=("torch", "transformers"), json_file=options.json, settings=settings)


if __name__ == "__main__":
    main()

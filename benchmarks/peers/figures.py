"""Policy, work and written figures of a side of the comparison."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.equal_turns import Work
from common.files import write_json
from envs.types import Episode
from modules.policy import Policy, load_policy

Settings = Mapping[str, Any]
# Episodes of each iteration, the first one's greedy; of each the seconds of the rollout, of all, and those of the CPU.
Trained = tuple[Sequence[Sequence[Episode]], Sequence[tuple[float, float, float]]]


def run_side(train: Callable[[Policy, Work, Settings], Trained]) -> None:
    """Train with the settings `argv[1]` and write the figures to the file `argv[2]`.

    `update_s` is all but the rollout. `moved` is the largest change of an embedded number: with AdamW about the
    learning rate an iteration, where it learnt.
    """
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    policy = load_policy(settings["model"], dtype=settings["dtype"], device=settings["device"])
    weight: Tensor = policy.model.get_input_embeddings().weight  # pyright: ignore
    before = weight.detach().clone()
    episodes, seconds = train(policy, Work(**settings["work"]), settings)
    rows = [
        {"tokens": sampled(these), "rollout_s": rollout, "update_s": all_s - rollout, "seconds": all_s, "cpu_s": cpu}
        for these, (rollout, all_s, cpu) in zip(episodes, seconds, strict=True)
    ]
    ids = {f"{one.question.id}/{one.sample}": [turn.action_ids for turn in one.turns] for one in episodes[0]}
    moved = float((weight.detach() - before).abs().max())
    write_json(sys.argv[2], {"iterations": rows[1:], "ids": ids, "moved": moved})


def sampled(episodes: Sequence[Episode]) -> int:
    """Tokens that the policy sampled."""
    return sum(len(turn.action_ids) for one in episodes for turn in one.turns)

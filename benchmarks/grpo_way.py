"""The suite's own iteration of GRPO as a way of `benchmarks.rl_step`: callback, credit and Trainer as in a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from torch import Tensor

from benchmarks.equal_turns import Work, equal_turns
from benchmarks.iterations import train
from benchmarks.measures import Stopwatch
from benchmarks.rollout_way import policy_of, world_questions
from benchmarks.scored import Scored
from benchmarks.ways import Turns
from callbacks.rollout import RolloutCallback
from envs.interfaces import RewardContext
from envs.rollout import independent_groups
from envs.types import Episode
from modules.functional.credit import grpo_credit
from modules.grpo import GRPO
from modules.optimizer import AdamW
from modules.policy import Policy
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler


class Iterations(Callback):
    """Lets an iteration begin when it is this way's turn. It stands before the rollout callback."""

    def __init__(self, scored: Scored, turns: Turns) -> None:
        self._scored, self._turns = scored, turns
        self._episodes: Sequence[Episode] = ()

    def sampling(self, *arguments: Any, **settings: Any) -> list[Episode]:
        """`independent_groups`, timed."""
        watch = Stopwatch()
        episodes = independent_groups(*arguments, **settings)
        self._scored.rollout_s, self._episodes = watch.read()["seconds"], episodes
        return episodes

    def reward(self, episodes: Sequence[Episode], context: RewardContext) -> Tensor:
        """The reward that both sides share."""
        return self._scored.outcomes(episodes)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        if self._turns.wait() is None:
            raise SystemExit
        self._watch = Stopwatch()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._turns.answer(self._scored.figures(self._watch, self._episodes))


def fit(policy: Policy, settings: Mapping[str, Any], turns: Turns) -> None:
    """Iterations as long as there are turns."""
    work = Work(**settings["work"])
    iterations = Iterations(Scored(policy, settings), turns)
    sampler = InProcessSampler(temperature=settings["temperature"], batch_size=settings["rows"])
    rollout = RolloutCallback(
        equal_turns(settings["model"], work, Path(settings["world"]) / "data" / "corpus.jsonl"),
        sampler,
        rewards={"shared": Term(iterations.reward)},
        sampling=partial(iterations.sampling, pool=work.episodes),
    )
    learner = GRPO(policy, AdamW(1e-6), credit=partial(grpo_credit), temperature=settings["temperature"])
    train(
        learner,
        rollout,
        iterations,
        world_questions(settings["world"]),
        work,
        iterations=10**6,  # it ends where there are no more turns
        micro_batch=settings["micro_batch"],
        accelerator="cpu" if settings["device"] == "cpu" else "auto",
        gradient_clip_val=1.0,
    )


def main() -> None:
    """Train an iteration whenever it is this way's turn."""
    turns, settings = Turns(), json.loads(sys.argv[1])
    fit(policy_of(settings), settings, turns)


if __name__ == "__main__":
    main()

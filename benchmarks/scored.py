"""Rewards and figures that both sides of `benchmarks.rl_step` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.equal_turns import variety
from benchmarks.measures import Stopwatch
from benchmarks.ways import Message
from envs.types import Episode
from modules.policy import Policy, load_policy
from modules.reward_model.model import untrained_reward_model


class Scored:
    """The outcome reward of an iteration's episodes, and what the iteration took.

    The reward is the share of different tokens plus, with `reward_model` in the settings, the mean over steps of the
    sigmoid of a reward model's score: the policy's own weights as they were, under a head of random numbers.
    """

    def __init__(self, policy: Policy, settings: Mapping[str, Any]) -> None:
        self.rollout_s = self.scoring_s = self.reward = 0.0
        self._weight: Tensor = policy.model.get_input_embeddings().weight  # pyright: ignore
        self._before = self._weight.detach().clone()
        self._scorer = None
        if settings["reward_model"]:
            start = load_policy(settings["model"], dtype=settings["dtype"], device=settings["device"])
            self._scorer = untrained_reward_model(start, kinds=["query", "answer"])
            weight = self._scorer.head.linear.weight
            random = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
            weight.data.copy_(0.1 * random)

    def outcomes(self, episodes: Sequence[Episode]) -> Tensor:
        """`[B]`: one reward an episode."""
        watch, rewards_B = Stopwatch(), variety(episodes)
        if self._scorer is not None:
            scores = [scores_S.sigmoid().mean() for scores_S in self._scorer.score(episodes)]
            rewards_B = rewards_B + torch.stack(scores).cpu()
        self.scoring_s, self.reward = watch.read()["seconds"], float(rewards_B.mean())
        return rewards_B

    def figures(self, watch: Stopwatch, episodes: Sequence[Episode]) -> Message:
        """What an iteration took since `watch` was made; `update_s` is all but rollout and scoring.

        `moved` is the largest change of an embedded number: about the learning rate, with AdamW, where it learnt.
        """
        seconds = watch.read()
        moved = float((self._weight.detach() - self._before).abs().max())
        self._before = self._weight.detach().clone()
        tokens = sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
        parts = {"rollout_s": self.rollout_s, "scoring_s": self.scoring_s}
        update = seconds["seconds"] - sum(parts.values())
        return {"tokens": tokens, "reward": self.reward, "moved": moved, **parts, "update_s": update, **seconds}

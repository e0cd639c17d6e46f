"""Groups whose rewards are all equal: what they move, what is dropped, what a run warns of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.types import Episode
from modules.rewards.terms import Term
from tests.callbacks.test_rollout_callback import same
from tests.toy_rl import Asked, learn, small_policy


def constant(episodes: Sequence[Episode], context: Any, *, value: float = 0.7) -> Tensor:
    return torch.full((len(episodes),), value)


@pytest.mark.parametrize("zero_variance", ["keep", "drop"])
def test_rewards_that_are_all_equal_move_nothing(tmp_path: Path, zero_variance: str) -> None:
    flat = {"flat": Term(constant), "steps": Term(lambda e, c: [torch.ones(len(x.steps)) for x in e], level="step")}
    module, watch, metrics = learn(tmp_path, rewards=flat, zero_variance=zero_variance)
    assert same(module.model.state_dict(), small_policy().model.state_dict())
    assert metrics["frac_reward_zero_std"] == metrics["frac_reward_zero_std/process"] == 1
    assert metrics["grad_norm"] == metrics["loss"] == 0
    assert metrics["reward"] == pytest.approx(0.7)
    assert bool(watch.buffers[0]) == (zero_variance == "keep")


def test_groups_without_spread_are_dropped_whole_and_others_stay(tmp_path: Path) -> None:
    def on_one(episodes: Sequence[Episode], context: Any) -> Tensor:
        """Only one question's group has spread, and in it one episode has the mean reward."""
        return torch.tensor([(0.0, 0.5, 0.5, 1.0)[e.sample] if e.question.id == "q1" else 0.0 for e in episodes])

    settings: dict[str, Any] = {"rewards": {"one": Term(on_one)}, "questions": Asked(4), "iterations": 1}
    _, kept, _ = learn(tmp_path, **settings)
    _, dropped, metrics = learn(tmp_path, **settings, zero_variance="drop")
    assert (len(kept.buffers[0]), len(dropped.buffers[0])) == (16, 4)
    assert metrics["frac_reward_zero_std"] == 0.75


def test_a_run_warns_where_a_lesser_reward_decides_and_the_heaviest_is_flat(tmp_path: Path, caplog: Any) -> None:
    def by_sample(episodes: Sequence[Episode], context: Any) -> Tensor:
        return torch.tensor([float(episode.sample) for episode in episodes])

    rewards = {"right": Term(constant), "format": Term(by_sample, weight=0.2)}
    _, _, metrics = learn(tmp_path, rewards=rewards, iterations=2)
    assert (metrics["frac_reward_zero_std/right"], metrics["frac_reward_zero_std/format"]) == (1, 0)
    assert caplog.text.count("reward right is the same in all episodes of a question") == 1
    assert "for 100 % of the questions" in caplog.text

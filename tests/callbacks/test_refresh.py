"""A reward model that learns from the rollouts of reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from callbacks.refresh import RewardModelRefresh
from common.accounts import JUDGED_STEPS
from common.errors import ConfigError
from envs.siblings import Candidate
from modules.label_prm import LossWeights
from modules.reward_model.model import RewardModel, load_reward_model
from modules.rewards.process import process
from modules.rewards.terms import Term
from tests.toy_refresh import EvenEnd, RefreshInAnyFormat, reward_model
from tests.toy_rl import TERMS, learn


class Scores(Callback):
    """Keeps, of every iteration, whether the reward model's head is as it was in the beginning."""

    def __init__(self, scorer: RewardModel) -> None:
        self.scorer, self.moved = scorer, []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.moved.append(bool(self.scorer.head.linear.weight.any()))


def run(
    folder: Path, *, iterations: int = 4, **settings: Any
) -> tuple[RewardModelRefresh, EvenEnd, dict[str, Any], Any]:
    scorer, judge = reward_model(), EvenEnd()
    refresh = RefreshInAnyFormat(scorer, judge, **({"lr": 3e-2, "every": 2, "updates": 2} | settings))
    scores = Scores(scorer)
    rewards = TERMS | {"prm": Term(partial(process, scorer=scorer), level="step")}
    _, watch, metrics = learn(folder, iterations=iterations, rewards=rewards, callbacks=[refresh, scores])
    return refresh, judge, metrics, (scores, watch)


def test_it_learns_every_few_iterations_and_the_next_one_scores_with_it(tmp_path: Path) -> None:
    refresh, judge, metrics, (scores, _) = run(tmp_path, updates=1)
    assert scores.moved == [False, False, True, True], "iterations 1 and 3 end with a refresh"
    assert len(judge.asked) == len(set(judge.asked)) == refresh.counts[JUDGED_STEPS]
    assert refresh.counts["account/judge_calls"] == len(judge.asked)
    assert 0 < metrics["refresh/steps"] < len(judge.asked), "those of the last rollout"
    assert {uid.split("/")[1] for uid in judge.asked} == {"1", "3"}


def test_it_learns_what_the_judge_says(tmp_path: Path) -> None:
    refresh, _, metrics, _ = run(tmp_path, iterations=2, updates=20, lr=1e-2)
    again = run(tmp_path / "again", iterations=4, updates=20, lr=1e-2)[2]
    assert metrics["refresh/loss"] == pytest.approx(2 * 0.6931, abs=0.35), "log 2 and the ranking of equal scores"
    assert again["refresh/loss"] < 0.8 * metrics["refresh/loss"], "on rollouts that it has not seen"
    assert again["refresh/accuracy"] > 0.8
    saved = load_reward_model(tmp_path / "reward_model", device="cpu")
    assert all(
        torch.equal(one, other)
        for one, other in zip(
            saved.policy.model.parameters(), refresh.reward_model.policy.model.parameters(), strict=True
        )
    )
    assert torch.equal(saved.head.linear.weight, refresh.reward_model.head.linear.weight)


def test_some_episodes_of_each_group_are_enough(tmp_path: Path) -> None:
    _, judge, _, _ = run(tmp_path, iterations=2, episodes=1)
    assert {uid.split("/")[2] for uid in judge.asked} == {"0"}
    assert len({uid.split("/")[0] for uid in judge.asked}) == 4


def test_what_is_read_back_goes_on_as_what_was_saved(tmp_path: Path) -> None:
    """The state after one refresh, loaded into another callback: the same model and the same next step."""
    first, _, _, (_, _watch) = run(tmp_path, iterations=2)
    state = torch.load(_saved(first.state_dict(), tmp_path / "state.pt"), weights_only=True)
    other = RewardModelRefresh(reward_model(), EvenEnd(), lr=3e-2)
    other.load_state_dict(state)
    assert other.counts == first.counts
    for callback in (first, other):
        for parameter in callback._parameters:  # pyright: ignore[reportPrivateUsage]
            parameter.grad = torch.full_like(parameter, 0.1)
        callback._optimizer.step()  # pyright: ignore[reportPrivateUsage]
    pairs = zip(first._parameters, other._parameters, strict=True)  # pyright: ignore[reportPrivateUsage]
    assert all(torch.equal(one, same) for one, same in pairs)


def _saved(state: dict[str, Any], path: Path) -> Path:
    torch.save(state, path)
    return path


def test_a_judge_without_an_opinion_changes_nothing(tmp_path: Path) -> None:
    scorer = reward_model()

    class Silent(EvenEnd):
        def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
            return [None] * len(candidates)

    refresh = RefreshInAnyFormat(scorer, Silent(), lr=1.0, every=1)
    _, _, metrics = learn(tmp_path, iterations=1, callbacks=[refresh])
    assert not scorer.head.linear.weight.any()
    assert "refresh/loss" not in metrics
    assert refresh.counts[JUDGED_STEPS] > 0


def test_what_is_too_long_to_learn_from_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    refresh, _, metrics, _ = run(tmp_path, iterations=2, max_tokens=2)
    assert "sequences of more than 2 tokens are not learnt from" in caplog.text
    assert "refresh/loss" not in metrics
    assert refresh.counts[JUDGED_STEPS] > 0


@pytest.mark.parametrize("setting", [{"every": 0}, {"updates": 0}, {"episodes": 0}, {"lr": 0.0}, {"clip": 0.0}])
def test_a_setting_out_of_range_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        RewardModelRefresh(reward_model(), EvenEnd(), **({"lr": 1e-3} | setting))


def test_weights_that_mean_nothing_are_refused() -> None:
    for weights in ({"pointwise": -1.0}, {"pointwise": 0.0, "ranking": 0.0}, {"min_gap": 0.0}):
        with pytest.raises(ConfigError, match="one of them above 0"):
            LossWeights(**weights)

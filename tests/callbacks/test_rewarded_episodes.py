"""Which episodes of an iteration are kept to be read, and what their rows say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from callbacks.rewarded_episodes import rewarded_row, shown
from callbacks.rollout import Iteration
from envs.types import Episode, Question, Step, Turn
from modules.rewards.terms import Scores

NAN = float("nan")
ENVIRONMENT: Any = SimpleNamespace(retriever=None, protocol=SimpleNamespace(valid=lambda episode: True))


def episode(question: str, sample: int, first: str = "") -> Episode:
    turns = [
        Turn("policy", (), (1, 2), (-0.5, -1.5), "stop", first or f"{question}/{sample}/0", text="asks"),
        Turn("policy", (), (3,), (-0.25,), "stop", f"{question}/{sample}/1", text="says"),
    ]
    steps = (Step("query", True, ((0, 0, 2),), query="who?"), Step("answer", True, ((1, 0, 1),), claim="Ann"))
    return Episode(Question(question, "Who?", ("Ann",)), (0,), turns, "answered", "Ann", steps, sample=sample)


def iteration(episodes: list[Episode], outcome: list[float]) -> Iteration:
    count = len(episodes)
    prm = torch.tensor([[0.5, NAN]] * count)
    mask = torch.tensor([[True, True]] * count)
    scores = Scores(2 * prm, mask, torch.tensor(outcome), {"prm": prm, "f1": torch.tensor(outcome) / 2})
    return Iteration(episodes, 2, scores, torch.tensor([[1.0, -0.5]] * count))


def test_of_a_group_the_best_and_the_worst_are_kept_and_one_where_all_are_alike() -> None:
    episodes = [episode(question, sample) for question in ("a", "b", "c") for sample in (0, 1)]
    chosen = list(shown(iteration(episodes, [0.25, 0.75, 0.5, 0.5, NAN, 0.0]), 3))
    assert chosen == [
        (1, "best of 2"),
        (0, "worst of 2"),
        (2, "one of 2 alike"),
        (5, "best of 2"),
        (4, "worst of 2"),
    ]
    assert len(list(shown(iteration(episodes, [0.0] * 6), 1))) == 1


def test_of_a_tree_every_path_is_kept() -> None:
    episodes = [episode("a", sample, first="a/0/0") for sample in range(3)] + [episode("b", 0)]
    chosen = list(shown(iteration(episodes, [0.0, 1.0, 0.0, 1.0]), 2))
    assert chosen == [(0, "path 1 of 3"), (1, "path 2 of 3"), (2, "path 3 of 3"), (3, "one of 1 alike")]


def test_a_step_that_trains_nobody_has_no_advantage() -> None:
    frozen = episode("a", 1)
    frozen.turns[1] = replace(frozen.turns[1], trainable=False)
    query, answer = rewarded_row(iteration([episode("a", 0), frozen], [0.5, 1.0]), 1, ENVIRONMENT, None)["steps"]
    assert (query["advantage"], answer["advantage"]) == (1.0, None)


def test_a_row_has_every_reward_before_its_weight_their_sum_the_advantage_and_the_turn() -> None:
    row = rewarded_row(iteration([episode("a", 0), episode("a", 1)], [0.5, 1.0]), 1, ENVIRONMENT, None)
    assert (row["sample"], row["outcome"]) == (1, {"f1": 0.5, "reward": 1.0})
    query, answer = row["steps"]
    assert query["rewards"] == {"prm": 0.5, "reward": 1.0}
    assert answer["rewards"] == {"prm": None, "reward": None}, "unscored"
    assert [step["advantage"] for step in (query, answer)] == [1.0, -0.5]
    assert (query["uid"], query["logp"]) == ("a/1/0", -1.0)


def test_a_step_that_was_not_sampled_has_no_reward_and_a_level_without_rewards_none() -> None:
    told = iteration([episode("a", 0)], [0.5])
    told.scores.step_mask_BS[0, 1] = False
    told = replace(told, scores=replace(told.scores, breakdown={"f1": torch.tensor([0.5])}))
    query, answer = rewarded_row(told, 0, ENVIRONMENT, None)["steps"]
    assert query["rewards"] == {}
    assert "advantage" not in answer


class Oracle:
    def judge(self, episode: Episode) -> Any:
        return SimpleNamespace(
            valid=(True, False), flawed=True, unresolved=False, needless=(None, None), unfounded=(None, None)
        )


@pytest.mark.parametrize(("oracle", "truth"), [(None, None), (Oracle(), False)])
def test_the_truth_of_a_step_is_told_where_an_oracle_knows_it(oracle: Any, truth: bool | None) -> None:
    row = rewarded_row(iteration([episode("a", 0)], [1.0]), 0, ENVIRONMENT, oracle)
    assert row["steps"][1].get("truth") is truth

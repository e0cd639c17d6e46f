from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from common.errors import ConfigError
from envs.interfaces import RewardContext
from modules.rewards.noisy_steps import noisy_steps
from tests.modules.rewards.test_rewards import PROTOCOL, RIGHT


def steps(episodes, context):
    return [torch.tensor([0.0, 0.5, float("nan")]) for _ in episodes]


def played(number: int):
    turns = [replace(turn, uid=f"{number}/{place}") for place, turn in enumerate(RIGHT.turns)]
    return replace(RIGHT, turns=turns)


def test_a_known_share_of_the_verdicts_is_turned_round() -> None:
    episodes, context = [played(number) for number in range(200)], RewardContext(PROTOCOL)
    rows = torch.stack(noisy_steps(episodes, context, reward=steps, rate=0.2, paid=0.25))
    turned = int((rows[:, 0] == 0.25).sum()), int((rows[:, 1] == 0.0).sum())
    assert turned == (34, 40), "shares of .17 and .20 by hash"
    assert bool(rows[:, 2].isnan().all()), "what is unknown stays unknown"
    assert float(context.logged["turned_round"].sum()) == sum(turned)
    again = torch.stack(noisy_steps(episodes, context, reward=steps, rate=0.2, paid=0.25))
    assert torch.equal(rows.nan_to_num(9), again.nan_to_num(9)), "by hash"
    assert [row.tolist()[:2] for row in noisy_steps(episodes[:1], context, reward=steps, rate=0.0)] == [[0.0, 0.5]]
    assert [row.tolist()[:2] for row in noisy_steps(episodes[:1], context, reward=steps, rate=1.0)] == [[1.0, 0.0]]
    assert noisy_steps([], context, reward=steps, rate=0.5) == []


def test_the_rate_is_a_share() -> None:
    with pytest.raises(ConfigError, match=r"noisy_steps: rate 1\.5 must be in \[0, 1\]"):
        noisy_steps([RIGHT], RewardContext(PROTOCOL), reward=steps, rate=1.5)

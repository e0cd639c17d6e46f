from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from common.errors import ConfigError
from envs.interfaces import RewardContext
from envs.types import Episode
from modules.rewards.answer import answer_exact
from modules.rewards.noisy_outcome import noisy_outcome
from tests.modules.rewards.test_rewards import CONTEXT, PROTOCOL, RIGHT


def test_a_share_of_the_questions_is_scored_by_a_poor_key_whatever_is_sampled() -> None:
    def asked(number: int) -> Episode:
        return replace(RIGHT, question=replace(RIGHT.question, id=f"q{number}", answers=("Ada L.", "Ada Lovelace")))

    episodes, context = [asked(number) for number in range(200)], RewardContext(PROTOCOL)
    wrong = noisy_outcome(episodes, context, reward=answer_exact, wrong=0.2)
    assert int(wrong.sum()) == 162
    assert float(context.logged["always_wrong"].sum()) == 38
    assert torch.equal(wrong, noisy_outcome(episodes, CONTEXT, reward=answer_exact, wrong=0.2)), "by hash"
    more = noisy_outcome(episodes, CONTEXT, reward=answer_exact, wrong=0.3)
    assert bool((more <= wrong).all())
    assert not torch.equal(wrong, noisy_outcome(episodes, CONTEXT, reward=answer_exact, wrong=0.2, seed=1))
    assert int(noisy_outcome(episodes, CONTEXT, reward=answer_exact, one_alias=0.5).sum()) == 97
    assert int(noisy_outcome(episodes, CONTEXT, reward=answer_exact).sum()) == 200
    with pytest.raises(ConfigError, match=r"noisy_outcome: one_alias 1\.5 must be in"):
        noisy_outcome(episodes, CONTEXT, reward=answer_exact, one_alias=1.5)

"""What is logged of a rollout batch."""

from __future__ import annotations

import pytest
import torch

from envs.protocols.prorag import ProRAG
from envs.types import Episode, Step, Turn
from evaluation.rollout_metrics import measure
from modules.rewards.terms import Scores
from tests.tiny import byte_tokenizer, question


def episode(answer: str, *valid: bool) -> Episode:
    turn = Turn("policy", (9,), (1,) * len(valid), (-1.0,) * len(valid), "stop", "a")
    steps = tuple(Step("query", one, ((0, i, i + 1),)) for i, one in enumerate(valid))
    return Episode(question(), (1, 2), [turn], status="answered", answer=answer, steps=steps)


def test_step_rewards_of_right_and_wrong_episodes_are_those_of_valid_steps() -> None:
    """The wrong episode's second step is invalid: a rule gave it 0, not the reward model."""
    episodes = [episode(question().answers[0], True, True), episode("no such thing", True, False)]
    given = torch.tensor([[0.6, 0.4], [0.8, 0.0]])
    scores = Scores(given, torch.ones(2, 2, dtype=torch.bool), torch.tensor([1.0, 0.0]), {"prm": given})
    protocol = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]
    values = measure(episodes, scores, torch.zeros(2, 2), protocol, group_size=2)
    tags = {"rewards/prm/mean": 0.45, "rewards/prm/right": 0.5, "rewards/prm/wrong": 0.8}
    assert {name: float(values[name].mean()) for name in tags} == pytest.approx(tags)

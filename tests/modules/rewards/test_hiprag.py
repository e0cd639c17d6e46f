"""The formula of HiPRAG's reward, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.rewards.hiprag import hierarchical


def reward_of(correct: float, formed: float, good: int, steps: int, **settings: Any) -> float:
    columns = [torch.tensor([value]) for value in (correct, formed, good, steps)]
    return float(hierarchical(*columns, **settings))


@pytest.mark.parametrize(
    ("correct", "formed", "good", "steps", "reward"),
    [
        (0, 0, 2, 4, 0.0),
        (0, 1, 2, 4, 0.2),
        (1, 0, 2, 4, 0.8),
        (1, 1, 2, 4, 1.2),
        (1, 1, 4, 4, 1.4),
        (1, 1, 0, 4, 1.0),
        (1, 1, 0, 0, 1.0),  # no steps, no bonus
        (1, 1, 4, 1, 2.6),  # the released code: four good steps over one search step
    ],
)
def test_the_formula(correct: float, formed: float, good: int, steps: int, reward: float) -> None:
    assert reward_of(correct, formed, good, steps) == pytest.approx(reward)
    assert reward_of(bool(correct), bool(formed), good, steps) == pytest.approx(reward)


def test_what_earns_no_bonus_needs_no_known_steps() -> None:
    wrong = hierarchical(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([torch.nan]), torch.tensor([3.0]))
    assert wrong.tolist() == pytest.approx([0.2])


def test_its_weights() -> None:
    assert reward_of(1, 1, 1, 2, lambda_f=0.1, lambda_p=0.6) == pytest.approx(0.9 + 0.1 + 0.3)
    assert reward_of(1, 1, 1, 2, lambda_p=0.0) == 1.0
    rows = hierarchical(*(torch.tensor(row) for row in ([True, False], [1.0, 1.0], [2, 2], [4, 4])))
    assert rows.tolist() == pytest.approx([1.2, 0.2])
    assert rows.dtype == torch.float32

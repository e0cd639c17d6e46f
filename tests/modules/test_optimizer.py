"""The optimiser's schedule by hand, and settings that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision

from common.errors import ConfigError
from modules.optimizer import AdamW


def rates(made: AdamW, steps: int, spent: Sequence[float] | None = None, **group: float) -> list[float]:
    """The rate of every step; `spent` is the share of a budget after each step, and before the first."""
    shares = iter(spent or ())
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} | group]
    configured = made.configure(groups, steps, None if spent is None else lambda: next(shares))
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_it_warms_up_and_falls_towards_the_floor() -> None:
    assert rates(AdamW(1.0, warmup_steps=2, floor=0.2), 6) == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4])
    assert rates(AdamW(0.3, floor=1.0), 3) == pytest.approx([0.3, 0.3, 0.3])


def test_a_group_with_a_learning_rate_of_its_own_follows_the_same_schedule() -> None:
    assert rates(AdamW(1.0, warmup_steps=2, floor=0.2), 4, lr=10.0) == pytest.approx([5.0, 10.0, 10.0, 6.0])


def test_with_a_budget_it_falls_with_what_is_spent_whatever_the_number_of_steps() -> None:
    spent = [0.0, 0.0, 0.25, 0.5, 1.0]
    assert rates(AdamW(1.0, floor=0.2), 4, spent) == pytest.approx([1.0, 1.0, 0.8, 0.6])
    assert rates(AdamW(1.0, floor=0.2, warmup_steps=4), 4, spent) == pytest.approx([0.25, 0.5, 0.6, 0.6])


@pytest.mark.parametrize(
    "settings", [{"lr": -1e-3}, {"warmup_steps": -1}, {"floor": 1.5}, {"betas": (0.9, 1.0)}, {"weight_decay": -0.1}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="lr, weight_decay and warmup_steps must be >= 0"):
        AdamW(**({"lr": 1e-3} | settings))


def test_sharded_weights_take_a_step_together_on_a_gpu_and_are_clipped_all_the_same() -> None:
    """On a CPU nothing changes; what a GPU is asked for, Lightning must still clip."""
    weights = [torch.nn.Parameter(torch.zeros(2))]
    plain = AdamW(1.0).configure([{"params": weights}], 4)["optimizer"]
    assert not plain.param_groups[0]["fused"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modules.optimizer._on_gpu", lambda weights: True)
        fused = AdamW(1.0).configure([{"params": weights}], 4)["optimizer"]
    assert fused.param_groups[0]["fused"] is True
    weights[0].grad = torch.tensor([3.0, 4.0])
    MixedPrecision("bf16-mixed", "cpu").clip_gradients(fused, 1.0)
    assert weights[0].grad.tolist() == pytest.approx([0.6, 0.8])

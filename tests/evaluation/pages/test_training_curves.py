from __future__ import annotations

import math
import tarfile
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from common.errors import DataError
from evaluation.pages.training_curves import area, training_curves


def fit(folder: Path) -> Path:
    """An artifact whose events have three iterations of 100, 150 and 130 tokens, validated before and after them."""
    events = folder / "events"
    writer = SummaryWriter(str(events))
    for step, tokens in enumerate((100, 250, 380)):
        writer.add_scalar("cost/tokens/policy", tokens, step)
        writer.add_scalar("event/settles_a_hop/adv", 0.25 * step, step)
        writer.add_scalar("rewards/answer/mean", 0.125 * step, step)
        writer.add_scalar("reward", 1.0, step)
    for step, em in ((0, 0.25), (2, 0.5), (3, 0.75)):
        writer.add_scalar("eval/world/dev/em", em, step)
    writer.add_scalar("eval/world/dev/flawed", 0.125, 3)
    writer.close()
    with tarfile.open(folder / "events.tar", "w") as archive:
        archive.add(events, arcname=".")
    return folder


def test_a_curve_has_the_tokens_that_were_sampled_before_each_point(tmp_path: Path) -> None:
    assert list(training_curves(fit(tmp_path))) == [
        {
            "dataset": "world",
            "split": "dev",
            "tokens": [0, 250, 380],
            "em": [0.25, 0.5, 0.75],
            "flawed": [None, None, 0.125],
            "early": {"event/settles_a_hop/adv": 0.25, "rewards/answer/mean": 0.125},
        }
    ]


def test_a_fit_without_events_has_no_curve_and_damaged_events_are_named(tmp_path: Path) -> None:
    assert list(training_curves(tmp_path)) == []
    (tmp_path / "events.tar").write_bytes(b"x" * 600)
    with pytest.raises(DataError, match=r"events\.tar is damaged"):
        list(training_curves(tmp_path))


def test_the_area_is_the_mean_over_the_budget() -> None:
    assert area([0, 100, 200], [0.0, 0.5, 0.5], 200) == pytest.approx(0.375)
    assert area([0, 100, 400], [0.0, 0.5, 1.1], 200) == pytest.approx((0.25 * 100 + 0.6 * 100) / 200)
    assert area([0, 190], [0.5, 0.5], 200) == pytest.approx(0.5)
    assert math.isnan(area([0, 170], [0.5, 0.5], 200)), "it ends too early"
    assert area([0, 100, 200], [0.0, None, 1.0], 200) == pytest.approx(0.5)

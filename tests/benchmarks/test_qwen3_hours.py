"""The arithmetic of hours, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.qwen3_hours import CONFIG, SHAPE, Inputs, hours, tokens_per_s
from pipeline.loader import load

STAGES = load(CONFIG, []).experiment.stages


def test_sampling_follows_from_the_bandwidth() -> None:
    # a step reads 2 · 7,568,405,504 bytes of weights, one table left out, and 16 · 1,500 · 147,456 of keys and values
    assert SHAPE.bytes_a_step([1500] * 16) == 15_136_811_008 + 3_538_944_000
    assert tokens_per_s(Inputs(), 16) == pytest.approx(0.25 * 16 * 2.04e12 / 18_675_755_008)
    assert tokens_per_s(Inputs(share=0.5), 16) == pytest.approx(2 * tokens_per_s(Inputs(), 16))


def test_hours_by_hand() -> None:
    by_stage = hours(STAGES, Inputs())
    per_s, searched_per_s = (4 * tokens_per_s(Inputs(), rows) for rows in (16, 32))
    assert by_stage["search"] == pytest.approx(728 * 200 * (5 * 150 + 750) / searched_per_s / 3600)
    scored_and_trained = 1250 * 64 * 3000 * 10 * 8_190_735_360 / 600e12
    assert by_stage["rl"] == pytest.approx((1250 * 64 * 750 / per_s + scored_and_trained) / 3600)
    assert by_stage["prm"] == pytest.approx(2 * 20_000 / 5 * 3000 * 8 * 8_190_735_360 / 600e12 / 3600)
    twice = hours(STAGES, replace(Inputs(), gpus=8))
    assert {name: 2 * value for name, value in twice.items()} == pytest.approx(by_stage)

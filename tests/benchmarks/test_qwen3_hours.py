"""The arithmetic of hours, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.qwen3_hours import CONFIG, SAMPLERS, SHAPE, Inputs, given_s, hours, slept_s, tokens_per_s
from pipeline.loader import load

SERVED, IN_PROCESS = (load(CONFIG, how).experiment.stages for how in SAMPLERS.values())
WEIGHTS = 8_190_735_360


def test_sampling_follows_from_the_bandwidth() -> None:
    # a step reads 2 · 7,568,405,504 bytes of weights, one table left out, and 16 · 1,500 · 147,456 of keys and values
    assert SHAPE.bytes_a_step([1500] * 16) == 15_136_811_008 + 3_538_944_000
    assert tokens_per_s(Inputs(), 16, 0.25) == pytest.approx(0.25 * 16 * 2.04e12 / 18_675_755_008)
    assert tokens_per_s(Inputs(), 16, 0.5) == pytest.approx(2 * tokens_per_s(Inputs(), 16, 0.25))


def test_an_update_is_handed_over_as_adapters_or_whole() -> None:
    # rank 16 of 36 layers: q and o 4096 + 4096, k and v 4096 + 1024, three of 4096 + 12288
    assert SHAPE.adapter_parameters(16) == 16 * 36 * (2 * 8192 + 2 * 5120 + 3 * 16_384)
    proof = 256 * 8 * 2 * WEIGHTS
    assert given_s(Inputs(), True, 16) == pytest.approx(2 * 4 * 43_646_976 / 2e9 + proof / 19.5e12)
    assert given_s(Inputs(), False, 16) == pytest.approx(3 * 2 * WEIGHTS / 2e9 + proof / 1e12)
    assert slept_s(Inputs()) == pytest.approx(4 * WEIGHTS / 25e9)


@pytest.mark.parametrize(
    ("stages", "rows", "share", "scored", "handed_s"),
    [(SERVED, 128, 0.5, 3, given_s(Inputs(), True, 16) + slept_s(Inputs())), (IN_PROCESS, 32, 0.25, 2, 0.0)],
)
def test_hours_by_hand(stages: dict, rows: int, share: float, scored: int, handed_s: float) -> None:
    by_stage = hours(stages, Inputs())
    per_s, searched_per_s = (4 * tokens_per_s(Inputs(), count, share) for count in (16, rows))  # 64 episodes on 4 ranks
    a_token = 2 * WEIGHTS / 600e12  # to read or score
    searched = 728 * 200 * ((5 * 150 + 750) / searched_per_s + 2250 * a_token)
    assert by_stage["search"] == pytest.approx(searched / 3600)
    assert by_stage["eval_*"] == pytest.approx(3 * 36_790 * (750 / searched_per_s + 2250 * a_token) / 3600)
    learnt = 1250 * 64 * (750 / per_s + (2250 + 3000 * (3 + scored)) * a_token)
    assert by_stage["rl"] == pytest.approx((learnt + 1250 * handed_s) / 3600)
    assert by_stage["prm"] == pytest.approx(2 * 20_000 / 5 * 3000 * 8 * WEIGHTS / 600e12 / 3600)
    twice = hours(stages, replace(Inputs(), gpus=8))
    assert {name: 2 * twice[name] for name in twice if name != "rl"} == pytest.approx(
        {name: value for name, value in by_stage.items() if name != "rl"}
    )
    assert by_stage["rl"] / 2 < twice["rl"] < by_stage["rl"], "of 64 episodes a rank has 8, too few to fill its GPU"

"""The benchmark of growth: its arithmetic, and that the work it times is the work it names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.equal_turns import Work
from benchmarks.growth import Resending, exponent, measure
from modules.samplers.in_process import InProcessSampler

SMALL = Work(questions=1, group=2, turns=2, turn_tokens=4, observation=8, prompt=16)


def test_an_exponent_is_the_slope_of_the_logarithms() -> None:
    assert exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)
    assert exponent([2, 4, 8], [10, 20, 40]) == pytest.approx(1)
    assert exponent([10, 100, 1000], [5, 5, 5]) == pytest.approx(0)


def test_resending_feeds_the_square_of_the_turns_and_keeping_does_not() -> None:
    turns = [2, 4, 8]
    kept, resent = (
        [measure(replace(SMALL, turns=n), made(temperature=1.0), 1, hidden=32)["fed"] for n in turns]
        for made in (InProcessSampler, Resending)
    )
    assert kept[0] < resent[0]
    assert exponent(turns, kept) < 1.2
    assert exponent(turns, resent) > 1.3
    growth = [b - a for a, b in zip(kept, resent, strict=True)]
    assert exponent(turns, growth) > 1.8  # what is fed again grows with the square

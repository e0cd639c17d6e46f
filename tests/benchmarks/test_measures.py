"""What benchmarks count: bytes at their peak, and seconds of ways that take turns."""

from __future__ import annotations

import torch

from benchmarks.measures import alternating, peak_bytes, ratios


def test_the_peak_is_what_was_alive_at_once() -> None:
    def two_together() -> None:
        first, second = torch.zeros(2**20), torch.zeros(2**19)
        del first, second
        torch.zeros(2**20)

    assert peak_bytes(two_together) == 4 * (2**20 + 2**19)


def test_ways_take_turns_after_a_first_run_that_does_not_count() -> None:
    order: list[str] = []
    ways = {name: lambda name=name: order.append(name) for name in "ab"}
    times = alternating(ways, repeats=2)
    assert order == list("ababab")
    assert list(times["a"]) == ["seconds", "cpu_seconds"]


def test_a_ratio_above_1_says_that_ours_is_faster() -> None:
    ours, peer = {"seconds": 2.0, "cpu_seconds": 4.0}, {"seconds": 3.0, "cpu_seconds": 2.0}
    assert ratios(ours, peer) == {"seconds_ratio": 1.5, "cpu_seconds_ratio": 0.5}

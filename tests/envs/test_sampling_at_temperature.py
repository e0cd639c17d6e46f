"""One sampler at another temperature: what reaches it, what is given back, what it lets through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from common.costs import counted
from common.errors import ConfigError
from envs.requests import Request
from envs.sampling import AtTemperature, ByAgent, Greedy
from envs.types import Episode, Turn
from tests.envs.test_sampling import PROTOCOL, Freezes, Loads
from tests.tiny import question


class Remembers(Loads):
    """Remembers the requests that it took and the episodes that it holds; counts turns."""

    def __init__(self) -> None:
        super().__init__(PROTOCOL.codec.control, lambda _: "So.<say>Ada</say>")
        self.taken: list[Request] = []
        self.held: list[Episode] = []
        self.counts: Counter[str] = Counter()

    def take(self, request: Request) -> Turn:
        self.taken.append(request)
        self.counts["turns"] += 1
        return super().take(request)

    def hold(self, episodes: Sequence[Episode]) -> None:
        self.held += episodes


def test_one_sampler_at_two_temperatures_gives_back_what_was_asked_and_counts_once() -> None:
    one = Remembers()
    other = AtTemperature(one, temperature=0.5, top_p=0.9)
    request = Request(Episode(question(), (1, 2)), (), (), max_tokens=9)
    for sampler in (one, other):
        sampler.submit([request])
        assert [asked for asked, _ in sampler.collect()] == [request]
    assert [(taken.temperature, taken.top_p) for taken in one.taken] == [(None, None), (0.5, 0.9)]
    assert counted(one, other) == counted(other) == {"turns": 2}
    ByAgent({"policy": other}).hold([request.episode])
    assert one.held == [request.episode]


def test_another_temperature_does_not_hide_what_an_engine_computes_in() -> None:
    class InBfloat16(Remembers):
        engine_dtype = "bfloat16"

    for behind, expected in ((InBfloat16(), "bfloat16"), (Remembers(), None)):
        for sampler in (AtTemperature(behind), Greedy(behind)):
            assert sampler.engine_dtype == expected


def test_another_temperature_waits_and_freezes_as_the_sampler_behind_does() -> None:
    """So an agent at another temperature is polled beside those whose turns are made elsewhere."""

    class Elsewhere(Freezes):
        waits = True  # type: ignore[assignment]

        def poll(self) -> list[tuple[Request, Turn]]:
            return []

    behind, at_once = Elsewhere(PROTOCOL.codec.control, lambda _: ""), AtTemperature(Remembers(), temperature=0.5)
    both = ByAgent({"policy": (other := AtTemperature(behind, temperature=0.5))})
    both.submit([Request(Episode(question(), (1,)), (), (), max_tokens=9)])
    assert behind.arrival is both.arrival
    assert (other.waits, both.waits, other.poll(), other.freeze(), behind.asked) == (True, True, [], True, True)
    assert (at_once.waits, at_once.freeze()) == (False, False)


def test_a_released_request_is_forgotten_at_another_temperature() -> None:
    """Its number may be another request's later."""
    sampler = AtTemperature(Remembers(), temperature=0.5)
    dropped, kept = (Request(Episode(question(identity=name), (1,)), (), (), max_tokens=9) for name in "ab")
    sampler.submit([dropped, kept])
    sampler.release([dropped.episode])
    assert [request for request, _ in sampler.collect()] == [kept]
    assert not sampler._asked


def test_a_turn_that_another_asked_for_is_not_dropped() -> None:
    behind = Remembers()
    own, others = (Request(Episode(question(identity=name), (1,)), (), (), max_tokens=9) for name in "ab")
    sampler = AtTemperature(behind, temperature=0.5)
    behind.submit([others])
    sampler.submit([own])
    with pytest.raises(ConfigError, match="AtTemperature got a turn that it did not ask for"):
        sampler.collect()


@pytest.mark.parametrize("settings", [{"temperature": -0.1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_a_temperature_or_top_p_out_of_range_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be >= 0"):
        AtTemperature(Remembers(), **settings)

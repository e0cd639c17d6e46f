"""Processes that take turns: each answers its own work, what they print is no answer, one that ends says why."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.report import medians
from benchmarks.ways import Message, Way, WayFailed, all_open, alternate

ECHO = "tests.benchmarks.echo_way"


def test_a_way_answers_its_work_and_is_ended_with_the_block() -> None:
    with all_open([Way("echo", ECHO, {"add": 7})]) as ways:
        assert ways["echo"].take({"number": 3}) == {"doubled": 6, "added": 7}
        assert ways["echo"].take({"number": 5}) == {"doubled": 10, "added": 7}
        process: Any = ways["echo"]._process
        assert process.poll() is None
    assert process.poll() == 0


def test_a_way_that_ends_says_why() -> None:
    with Way("echo", ECHO, {"add": 0}) as way, pytest.raises(WayFailed, match=r"echo ended.*nothing to double"):
        way.take({"number": 0})


def test_ways_take_turns_after_one_that_does_not_count() -> None:
    order: list[str] = []

    class Scripted:
        def __init__(self, name: str, seconds: list[float]) -> None:
            self.name, self._seconds = name, iter(seconds)

        def take(self, work: Message) -> Message:
            order.append(self.name)
            return {"seconds": next(self._seconds)}

    ways: Any = {"a": Scripted("a", [99, 1, 5, 2]), "b": Scripted("b", [99, 4, 4, 7])}
    assert alternate(ways, {}, repeats=3) == {"a": {"seconds": 2}, "b": {"seconds": 4}}
    assert order == list("abababab")


def test_medians_are_of_each_figure() -> None:
    assert medians([{"x": 1, "y": 9}, {"x": 3, "y": 7}, {"x": 2, "y": 8}]) == {"x": 2, "y": 8}

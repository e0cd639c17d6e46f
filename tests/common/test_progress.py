"""Progress of a stage: what is said of it, the time left, and that nothing is drawn without a terminal."""

from __future__ import annotations

import time

import pytest

from common import progress
from common.progress import Progress, current, duration, progress_bar, stage_progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_follows_from_what_this_process_has_done() -> None:
    clock = Clock()
    stage = Progress("search", clock=clock)
    assert stage.status() == "at work"
    stage.begin_unit("unit", 4, 10)  # four are there from an earlier life
    assert stage.status() == "unit 5 of 10, at work"
    clock.now = 60.0
    stage.end_unit()
    assert stage.share == 0.5
    assert stage.status() == "unit 5 of 10, 5 min left"
    clock.now = 120.0  # a minute in which nothing ended
    assert stage.status() == "unit 5 of 10, 4 min left"
    stage.reach(0.2)
    assert stage.share == 0.5


def test_the_outermost_work_says_how_much_of_a_unit_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    stage = Progress("rl", clock=clock)
    monkeypatch.setattr(progress, "_CURRENT", stage)
    with progress_bar(8, "a curve before the first unit") as bar:
        bar.update(8)
    assert stage.share == 0.0
    stage.begin_unit("iteration", 0, 4)
    with progress_bar(1200, "episodes") as outer:
        clock.now = 10.0
        current().tokens += 500
        outer.update(600)
        with progress_bar(2, "judge") as inner:
            inner.update(2)
            assert stage.status() == "iteration 1 of 4, judge 2 of 2, 50 tokens/s, 1 min left"
        assert stage.status() == "iteration 1 of 4, episodes 600 of 1.20k, 50 tokens/s, 1 min left"
        assert stage.share == 0.125
    stage.facts["reward"] = 0.4312
    stage.end_unit()
    assert stage.status() == "iteration 1 of 4, reward 0.431, 50 tokens/s, 30 s left"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59.4, "59 s"), (90, "2 min"), (3599, "1 h 0 min"), (12_060, "3 h 21 min")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_without_a_terminal_the_first_rank_says_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, lines: int
) -> None:
    monkeypatch.setattr(progress, "_SAID", 0.05)
    monkeypatch.setenv("RANK", rank)
    with stage_progress("rl", "rl-12 now") as stage, progress_bar(4, "episodes") as bar:
        assert current() is stage
        bar.update(1)
        time.sleep(0.2)
    said = capsys.readouterr()
    assert said.out.count("rl: episodes 1 of 4, at work\n") >= lines
    assert bool(said.out) == bool(lines)
    assert said.err == ""
    assert current() is not stage


def test_on_a_terminal_there_is_a_bar_of_the_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_REDRAWN", 0.05)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with stage_progress("rl", "") as stage:
        stage.begin_unit("iteration", 1, 4)
        time.sleep(0.3)
    said = capsys.readouterr()
    assert "rl:  25%|" in said.err
    assert "| iteration 2 of 4, at work" in said.err
    assert said.out == ""

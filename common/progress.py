"""Signs of life of a stage: bars with the time left on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from tqdm import tqdm

from common.plain_text import one_line
from common.terminal import say

_REDRAWN, _SAID = 1.0, 60.0  # seconds between two drawings on a terminal, and between two lines elsewhere
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {unit}"


class Progress:
    """How far a stage is: its units of work, the work within the current unit, and figures to show with them.

    Attributes:
        work: the name of its artifact and when that was begun, under which chat clients note their calls.
        unit: what a unit of work is called.
        facts: figures by name, such as the reward.
        tokens: sampled so far.
    """

    def __init__(self, stage: str = "", work: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.stage, self.work, self.unit, self.tokens = stage, work, "unit", 0
        self.facts: dict[str, float] = {}
        self.share = 0.0  # of the stage
        self._clock = clock
        self._number, self._units = -1, 0
        self._inside = False  # a unit
        self._work: list[_Work] = []
        self._first: tuple[float, float] | None = None  # the share that this process began at, and when
        self._reached = 0.0  # when the share last rose
        self._sampled = 0.0, 0  # when the current work began, and the tokens sampled before
        self._speed = 0.0  # tokens a second

    def begin_unit(self, unit: str, number: int, units: int) -> None:
        """Begin a unit of work, counted from 0, of so many; 0 where their number is unknown."""
        self.unit, self._number, self._units, self._inside = unit, number, units, True
        self._reach_unit(number)

    def end_unit(self) -> None:
        """The current unit is done; what follows until the next is no part of one."""
        self._inside = False
        self._reach_unit(self._number + 1)

    def reach(self, share: float) -> None:
        """At least this share of the stage is done at this moment."""
        if self._first is None:
            self._first = share, self._clock()
        if share >= self.share:
            self.share, self._reached = min(share, 1.0), self._clock()

    def status(self) -> str:
        """`iteration 4 of 30, episodes 120 of 512, reward 0.431, 812 tokens/s, 12 min left`, as far as known."""
        of = f" of {self._units}" if self._units else ""
        parts = [f"{self.unit} {self._number + 1}{of}"] if self._number >= 0 else []
        parts += [work.status for work in self._work[-1:]]
        parts += [f"{name} {value:.3g}" for name, value in list(self.facts.items())]
        self._measure()
        if self._speed:
            parts.append(f"{self._speed:.0f} tokens/s")
        left = self._seconds_left()
        parts.append("at work" if left is None else f"{duration(left)} left")
        return ", ".join(parts)

    def _seconds_left(self) -> float | None:
        """Seconds left if the rest takes as long as what this process has done."""
        if self._first is None or self.share <= self._first[0]:
            return None
        spent = self._reached - self._first[1]
        left = (1 - self.share) / (self.share - self._first[0]) * spent
        return max(0.0, left - (self._clock() - self._reached))

    def _reach_unit(self, units: float) -> None:
        if self._units:
            self.reach(units / self._units)

    def _began(self, work: _Work) -> None:
        if not self._work:
            self._sampled = self._clock(), self.tokens
        self._work.append(work)

    def _ticked(self, work: _Work) -> None:
        """Of work within work only the outermost says how much of the unit is done."""
        if self._inside and work is self._work[0] and work.total:
            self._reach_unit(self._number + min(1.0, work.n / work.total))

    def _ended(self, work: _Work) -> None:
        if work in self._work:
            self._measure()
            self._work = [other for other in self._work if other is not work]

    def _measure(self) -> None:
        since, before = self._sampled
        if self._work and self.tokens > before:
            self._speed = (self.tokens - before) / max(self._clock() - since, 1e-9)


_CURRENT = Progress()


def current() -> Progress:
    """The progress of the stage that this process works at; where there is none, one that nobody shows."""
    return _CURRENT


@contextmanager
def stage_progress(stage: str, work: str) -> Iterator[Progress]:
    """Show a stage's progress while it works; on the first of several ranks alone."""
    global _CURRENT
    _CURRENT, ended = Progress(stage, work), Event()
    bar = tqdm(
        total=1.0, desc=one_line(stage), bar_format=_BAR, dynamic_ncols=True, leave=False, delay=_REDRAWN, **_quiet()
    )

    def show() -> None:
        while not ended.wait(_SAID if bar.disable else _REDRAWN):
            if bar.disable:
                say(f"{stage}: {_CURRENT.status()}")
            else:
                bar.n, bar.unit = _CURRENT.share, _CURRENT.status()
                bar.refresh()

    thread = Thread(target=show, daemon=True)
    if _is_first():
        thread.start()
    try:
        yield _CURRENT
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()
        for left in reversed(_CURRENT._work):
            left.close()
        bar.close()
        _CURRENT = Progress()


class _Work(tqdm):  # pyright: ignore[reportMissingTypeArgument]
    """A bar of work within a stage, whose progress counts also where no bar is drawn."""

    def __init__(self, total: int | None, label: str, unit: str) -> None:
        super().__init__(total=total, desc=one_line(label), unit=unit, dynamic_ncols=True, leave=False, **_quiet())
        self.label, self._of = one_line(label), current()
        self._of._began(self)

    @property
    def status(self) -> str:
        """`episodes 120 of 512`."""
        return f"{self.label} {_count(self.n)}" + (f" of {_count(self.total)}" if self.total else "")

    def update(self, n: float | None = 1) -> bool | None:
        if self.disable:
            self.n += n or 0
        drawn = super().update(n)
        self._of._ticked(self)
        return drawn

    def close(self) -> None:
        self._of._ended(self)
        super().close()


def progress_bar(total: int | None, label: str, unit: str = "it") -> tqdm[Any]:
    """A bar to `update(n)`, used as a context manager; draws nothing where stderr is no terminal."""
    return _Work(total, label, unit)


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def _count(number: float) -> str:
    """`120`, `1.20k`."""
    return f"{number:.0f}" if number < 1000 else tqdm.format_sizeof(number)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _quiet() -> dict[str, Any]:
    return {"disable": None if _is_first() else True}

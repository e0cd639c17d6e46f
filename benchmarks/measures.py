"""Stopwatch, medians of ways that take turns in one process, and peak memory of tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.report import medians


class Stopwatch:
    """Seconds by the clock (`seconds`) and of this process's cores added up (`cpu_seconds`), since it was made."""

    def __init__(self) -> None:
        self._clock, self._cpu = wait(), time.process_time()

    def read(self) -> dict[str, float]:
        """The seconds so far; a GPU finishes first what it was asked."""
        return {"seconds": wait() - self._clock, "cpu_seconds": time.process_time() - self._cpu}


def alternating(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """Median seconds of each way, by the clock (`seconds`) and of this process's cores added up (`cpu_seconds`).

    Every way runs once unmeasured, then all of them take turns, so that a machine that slows down slows all.
    """
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, run in ways.items():
            watch = Stopwatch()
            run()
            figures = watch.read()  # also of the first, for a GPU must have finished it before the next is measured
            if repeat:
                taken[name].append(figures)
    return {name: medians(times) for name, times in taken.items()}


def ratios(ours: Mapping[str, Any], peer: Mapping[str, Any]) -> dict[str, float]:
    """How many times faster ours is than a peer, by either clock."""
    return {f"{name}_ratio": round(peer[name] / ours[name], 2) for name in ("seconds", "cpu_seconds")}


def peak_bytes(run: Callable[[], object], device: str = "cpu") -> int:
    """The most bytes of tensors that were allocated at once by `run`, beyond those before it.

    PyTorch's own allocator counts them.
    """
    if device != "cpu":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    assert profile.profiler is not None
    results = profile.profiler.kineto_results
    assert results is not None
    events: Any = results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


def wait() -> float:
    """The clock, once a GPU has finished what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()

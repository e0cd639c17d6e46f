"""How much memory tensors take at most while something runs, counted by PyTorch's own allocator."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes on the CPU that were allocated at once by `run` beyond those before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    assert profile.profiler is not None
    results = profile.profiler.kineto_results
    assert results is not None
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak

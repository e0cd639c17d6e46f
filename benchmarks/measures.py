"""Stopwatch of benchmarks, which waits for a GPU."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Seconds by the clock (`seconds`) and of this process's cores added up (`cpu_seconds`), since it was made."""

    def __init__(self) -> None:
        self._clock, self._cpu = wait(), time.process_time()

    def read(self) -> dict[str, float]:
        """The seconds so far; a GPU finishes first what it was asked."""
        return {"seconds": wait() - self._clock, "cpu_seconds": time.process_time() - self._cpu}


def wait() -> float:
    """The clock, once a GPU has finished what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()

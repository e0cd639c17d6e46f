"""Measures of benchmarks: a stopwatch, which waits for a GPU, and the memory of the process."""

from __future__ import annotations

import gc
import resource
import time
from pathlib import Path

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


def resident_mb() -> float:
    """Megabytes of memory that the process holds, mapped files that were read included."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

"""What a device can do at most, measured: bytes a second of its memory, operations a second of its matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

# Dense bfloat16 operations a second by the makers' data sheets.
NOMINAL = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
_SLOWER = ("PCIe", "NVL")  # modules of the same names with less power, whose data sheets say less


def copied_bytes_per_s(device: str, size: int) -> float:
    """Bytes read and written a second while `size` bytes are copied; a median of 20."""
    source = torch.zeros(size // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source))


def matrix_flops_per_s(device: str, width: int) -> float:
    """Operations a second of a product of two square bfloat16 matrices; a median of 20."""
    left = torch.randn((width, width), dtype=torch.bfloat16, device=device)
    return 2 * width**3 / _seconds(lambda: left @ left)


def nominal_flops_per_s(device: str) -> float | None:
    """What the data sheet says of this device; None where it is not listed."""
    name = torch.cuda.get_device_name(device) if device != "cpu" else ""
    listed = not any(part in name for part in _SLOWER)
    return next((flops for part, flops in NOMINAL.items() if listed and part in name), None)


def device_name(device: str) -> str:
    """What a report calls the device."""
    return torch.cuda.get_device_name(device) if device != "cpu" else "cpu"


def _seconds(run: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(23):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[3:])

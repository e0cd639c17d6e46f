"""The device and its limits, measured: bytes a second of its memory, operations a second of a large matmul."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu_check.parts import Row, Size
from benchmarks.measures import wait

# Dense bfloat16 operations a second by the manufacturers' data sheets.
NOMINAL = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
_SLOWER = ("PCIe", "NVL")  # modules of the same names with less power, whose data sheets say less


def device(size: Size) -> Iterator[Row]:
    """Name, memory and limits of the device."""
    row: Row = {"device": "a CPU", "torch": torch.__version__}
    if not size.tiny:
        memory = torch.cuda.get_device_properties(0).total_memory
        row = {"device": torch.cuda.get_device_name(), "memory_gb": memory / 1e9, "torch": torch.__version__}
        row |= {"cuda": str(torch.version.cuda), "cudnn": torch.backends.cudnn.version()}
    matmul = matmul_flops_per_s(size)
    yield row | {"gb_per_s": copied_bytes_per_s(size) / 1e9, "matmul_tflops_per_s": matmul / 1e12}


def copied_bytes_per_s(size: Size) -> float:
    """Bytes read and written a second by a large copy; a median of 20."""
    source = torch.zeros(size.of(2**29, 2**23), dtype=torch.bfloat16, device=size.device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / _seconds(lambda: target.copy_(source))


def matmul_flops_per_s(size: Size) -> float:
    """Operations a second of a matmul of two square bfloat16 matrices; a median of 20."""
    width = size.of(8192, 256)
    left = torch.randn((width, width), dtype=torch.bfloat16, device=size.device)
    return 2 * width**3 / _seconds(lambda: left @ left)


def nominal_flops_per_s(size: Size) -> float | None:
    """FLOP/s on this device's data sheet; None where it is not listed."""
    name = "" if size.tiny else torch.cuda.get_device_name()
    listed = not any(part in name for part in _SLOWER)
    return next((flops for part, flops in NOMINAL.items() if listed and part in name), None)


def _seconds(run: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(23):
        start = wait()
        run()
        taken.append(wait() - start)
    return statistics.median(taken[3:])

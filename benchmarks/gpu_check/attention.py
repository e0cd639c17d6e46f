"""Kernels of attention on a GPU: their errors against float64, and the cost of a shape that comes up first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_check.parts import Row, Size
from benchmarks.measures import wait
from benchmarks.qwen3_shapes import SHAPES, untrained
from modules.decoder.kv_cache import Rows
from modules.decoder.row_attention import Read, stepping

ROWS, HEADS, KV_HEADS, HEAD_DIM = 16, 32, 8, 128  # of Qwen3-8B
LARGEST_ERROR = 0.03  # of bfloat16 inputs of size 1; a kernel that misreads a mask or a head is off by 1
BACKENDS = {
    "cuDNN": [SDPBackend.CUDNN_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "all but cuDNN": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


def kernels(size: Size) -> Iterator[Row]:
    """Errors and microseconds of a step of 16 rows, with all of PyTorch's kernels to pick from or some.

    Reading is in the tests of `modules/decoder/row_attention.py`.
    """
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {"all": nullcontext}
    ways |= size.of({name: lambda backends=backends: sdpa_kernel(backends) for name, backends in BACKENDS.items()}, {})
    for columns in size.of((257, 1024, 4095), (33,)):
        rows, read, lengths_B = _step(columns, size)
        new = _new_states(size)
        for name, way in ways.items():
            row: Row = {"columns": columns, "kernels": name}
            try:
                with way(), torch.inference_mode():
                    out = read(0, *new).double()
                    start = wait()
                    for _ in range(20):
                        read(0, *new)
                    micros = (wait() - start) / 20 * 1e6
                    ran = "" if size.tiny else _kernel_names(lambda read=read, new=new: read(0, *new))
            except RuntimeError as failure:  # this kernel cannot compute this
                yield row | {"ran": str(failure).splitlines()[0][:80]}
                continue
            error = float((out - _exact(rows, new[0], lengths_B)).abs().max())
            yield row | {"largest_error": error, "right": error < LARGEST_ERROR, "us": micros, "ran": ran}


def _step(columns: int, size: Size) -> tuple[Rows, Read, Tensor]:
    """Rows, what reads them, and the column of each row's new token, the last of so many at most."""
    rows = Rows(1, (KV_HEADS, HEAD_DIM), torch.empty(0, dtype=torch.bfloat16, device=size.device))
    rows.reserve(ROWS + 1, columns + 33, ())
    rows.buffers[0].normal_()
    lengths_B = torch.randint(0, columns, (ROWS,), device=size.device)
    lengths_B[0] = columns - 1
    return rows, stepping(rows, lengths_B, columns), lengths_B


def _new_states(size: Size) -> list[Tensor]:
    """Queries, keys and values of the new tokens."""
    return [torch.randn(ROWS, n, HEAD_DIM, device=size.device).bfloat16() for n in (HEADS, KV_HEADS, KV_HEADS)]


def _exact(rows: Rows, queries_BHD: Tensor, lengths_B: Tensor) -> Tensor:
    """What the step reads, in float64."""
    keys, values = (states[:ROWS].double() for states in rows.layer(0))
    scores = torch.einsum("bgqd,bgtd->bgqt", queries_BHD.double().unflatten(1, (KV_HEADS, -1)), keys) / HEAD_DIM**0.5
    behind = torch.arange(keys.shape[2], device=keys.device) > lengths_B[:, None, None, None]
    return torch.einsum("bgqt,bgtd->bgqd", scores.masked_fill(behind, float("-inf")).softmax(-1), values).flatten(1)


def _kernel_names(run: Callable[[], Tensor]) -> str:
    """The kernel that took most of the time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        run()
        wait()
    times = {event.key: event.device_time_total for event in seen.key_averages()}
    return max(times, key=lambda name: times[name], default="")[:60]


def new_shapes(size: Size) -> Iterator[Row]:
    """Medians over six lengths, with cuDNN's attention among the kernels and without it."""
    policy = untrained(SHAPES[size.of("0.6B", "tiny")], device=size.device)
    policy.model.train()

    def train(length: int) -> None:
        ids = torch.ones((1, length), dtype=torch.long, device=size.device)
        policy.model(input_ids=ids, use_cache=False).logits.float().mean().backward()
        policy.model.zero_grad()

    def step(columns: int) -> None:
        with torch.inference_mode():
            steps[columns][1](0, *states)

    states = _new_states(size)
    for cudnn, base in ((True, size.of(900, 40)), (False, size.of(920, 60))):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        lengths = range(base, base + size.of(6, 2))
        steps = {columns: _step(columns, size) for columns in (*lengths, base - 1)}
        for work, run in {"training": train, "sampling, attention of a layer": step}.items():
            run(base - 1)
            new, again = (statistics.median(_seconds(run, length) for length in lengths) for _ in range(2))
            yield {"cuDNN": "on" if cudnn else "off", "pass": work, "new_s": new, "again_s": again}


def _seconds(run: Callable[[int], None], length: int) -> float:
    start = wait()
    run(length)
    return wait() - start

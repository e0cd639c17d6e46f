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
from modules.decoder.row_attention import Read, reading, stepping

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128  # of Qwen3-8B
LARGEST_ERROR = 0.03  # of bfloat16 inputs of size 1; a kernel that misreads a mask or a head is off by 1
BACKENDS = {
    "cuDNN": [SDPBackend.CUDNN_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "all but cuDNN": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


def kernels(size: Size) -> Iterator[Row]:
    """Errors and microseconds of a step of 16 rows and of reading, with all of PyTorch's kernels or some."""
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {"all": nullcontext}
    ways |= size.of({name: lambda backends=backends: sdpa_kernel(backends) for name, backends in BACKENDS.items()}, {})
    for columns in size.of((257, 1024, 4095), (33,)):
        for work in ("step", "read"):
            rows, read, lengths = _step(columns, size) if work == "step" else _read(columns, size)
            new = [
                torch.randn(len(lengths), heads, HEAD_DIM, device=size.device).bfloat16()
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            ]
            for name, way in ways.items():
                row: Row = {"pass": work, "columns": columns, "kernel": name}
                try:
                    with way(), torch.inference_mode():
                        error, micros = _measured(lambda read=read, new=new: read(0, *new), rows, new[0], lengths, work)
                        ran = _kernel_names(lambda read=read, new=new: read(0, *new)) if size.device != "cpu" else ""
                except RuntimeError as failure:  # this kernel cannot compute this
                    yield row | {"ran": str(failure).splitlines()[0][:80]}
                    continue
                yield row | {"largest_error": error, "right": error < LARGEST_ERROR, "us": micros, "ran": ran}


def _rows(slots: int, columns: int, device: str) -> Rows:
    rows = Rows(1, (KV_HEADS, HEAD_DIM), torch.empty(0, dtype=torch.bfloat16, device=device))
    rows.reserve(slots, columns + 33, ())
    rows.buffer.normal_()
    return rows


def _step(columns: int, size: Size) -> tuple[Rows, Read, Tensor]:
    """A step of 16 rows of up to so many columns; the column of each new token."""
    rows = _rows(17, columns, size.device)
    lengths = torch.randint(0, columns, (16,), device=size.device)
    lengths[0] = columns - 1
    return rows, stepping(rows, lengths, columns), lengths


def _read(columns: int, size: Size) -> tuple[Rows, Read, Tensor]:
    """The last 9 tokens of a row."""
    rows = _rows(1, columns, size.device)
    lengths = torch.arange(columns - 9, columns, device=size.device)
    return rows, reading(rows, [(0, columns - 9, columns)], torch.bfloat16), lengths


def _measured(
    run: Callable[[], Tensor], rows: Rows, queries_NHD: Tensor, lengths_N: Tensor, work: str
) -> tuple[float, float]:
    """The largest error and the microseconds of a call."""
    out = run().double()
    start = wait()
    for _ in range(20):
        run()
    micros = (wait() - start) / 20 * 1e6
    slots = torch.arange(len(lengths_N)) if work == "step" else torch.zeros(len(lengths_N), dtype=torch.long)
    keys, values = (states[slots.to(states.device)].double() for states in rows.layer(0))
    scores = torch.einsum("ngqd,ngtd->ngqt", queries_NHD.double().unflatten(1, (KV_HEADS, -1)), keys) / HEAD_DIM**0.5
    behind = torch.arange(keys.shape[2], device=keys.device) > lengths_N[:, None, None, None]
    weights = scores.masked_fill(behind, float("-inf")).softmax(-1)
    exact = torch.einsum("ngqt,ngtd->ngqd", weights, values).flatten(1)
    return float((out - exact).abs().max()), micros


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
        _, read, lengths = steps[columns]
        with torch.inference_mode():
            read(0, *(torch.ones(len(lengths), n, HEAD_DIM, device=size.device).bfloat16() for n in heads))

    heads = (HEADS, KV_HEADS, KV_HEADS)
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

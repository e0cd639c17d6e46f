"""Decode steps of fixed shapes, recorded once and replayed: a GPU then waits for no Python between its kernels."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from modules.decoder.kv_cache import Rows

_ROWS, _COLUMNS = 64, 256  # shapes are multiples of these: a recording serves many steps before the next is made

Compute = Callable[[], Tensor]
Step = Callable[[Tensor, Tensor, int], Tensor]


class Recorder(Protocol):
    """Makes recordings of computations, each of which gives its result anew at every call."""

    def __call__(self, compute: Compute) -> Compute: ...

    def forget(self) -> None:
        """All recordings so far have been dropped."""


class StepGraphs:
    """Makes a step by replaying the recorded one of the next larger shape.

    Rows that are added to reach that shape hold nothing: they write to free slots and are left out of the answer.

    Args:
        record: makes the recordings.
        rows: where keys and values lie.
    """

    def __init__(self, record: Recorder, rows: Rows) -> None:
        self.record, self.rows = record, rows
        self._place: weakref.ref[Tensor] | None = None  # must not keep a buffer that has grown beside the new one
        self._inputs: dict[int, tuple[Tensor, Tensor]] = {}
        self._recorded: dict[tuple[int, int], Compute] = {}

    def __call__(self, step: Step, ids_B: Tensor, lengths_B: Tensor, lengths: Sequence[int]) -> Tensor:
        """Logits `[B, V]` after one more token of the first B rows, valid until the next call.

        Args:
            step: what makes it of ids `[B]`, lengths `[B]` and the number of columns that all rows read.
            ids_B, lengths_B, lengths: as in `FusedDecoder.step`.
        """
        B = len(ids_B)
        size, columns = padded_rows(B), padded_width(max(lengths) + 1, self.rows.limit)
        self.rows.reserve(size, columns, lengths)
        # A recording writes where the rows were when it was made.
        if self._place is None or self._place() is not self.rows.buffers[0]:
            self._recorded.clear()
            self.record.forget()
            self._place = weakref.ref(self.rows.buffers[0])
        if size not in self._inputs:
            self._inputs[size] = ids_B.new_zeros(size), lengths_B.new_zeros(size)
        ids, places = self._inputs[size]
        # before it is recorded, which makes the step once: what is written then is what the step writes anyway
        ids[:B], places[:B] = ids_B, lengths_B
        places[B:] = 0
        if (size, columns) not in self._recorded:
            self._recorded[size, columns] = self.record(lambda: step(ids, places, columns))
        return self._recorded[size, columns]()[:B]


def padded_rows(count: int) -> int:
    """The number of rows that a recorded step has: a power of two, or a multiple of 64."""
    return 1 << (count - 1).bit_length() if count < _ROWS else -(-count // _ROWS) * _ROWS


def padded_width(columns: int, limit: int) -> int:
    """The number of columns that a recorded step reads: a multiple of 256, but none beyond the limit without need."""
    return max(columns, min(-(-columns // _COLUMNS) * _COLUMNS, limit))


class CudaRecorder:
    """Records computations as CUDA graphs that share their memory; the result of each stays its own.

    It has a stream of its own, for cuBLAS keeps its workspaces by stream: PyTorch may drop those of a stream with a
    graph that was recorded on it, while other graphs of that stream still write there (pytorch issue 193402).

    Args:
        device: where the computations run.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()
        self.forget()

    def forget(self) -> None:
        """Take memory anew: PyTorch refuses a pool whose graphs are gone while a result of them is still in use."""
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Compute:
        with torch.cuda.device(self._stream.device):  # which need not be the current one, where graphs are recorded
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):  # once unrecorded: libraries prepare themselves at their first call
                compute()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # other threads, such as those of collective calls, may use the GPU meanwhile
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

"""Parts of the GPU check: their functions, time limits and captions, and the process in which one of them runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """Full, on a GPU, or tiny, on a CPU, where each part takes seconds."""

    tiny: bool

    @property
    def device(self) -> str:
        return "cpu" if self.tiny else "cuda"

    def of(self, full: T, tiny: T) -> T:
        """The value for this size."""
        return tiny if self.tiny else full


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the check.

    Attributes:
        function: `module:name` of what yields its rows, given a `Size`; what it yielded counts even if it fails later.
        limit_s: seconds that its process has at most.
        caption: what its rows show.
        line: how docs/benchmarks.md writes a row.
    """

    function: str
    limit_s: float
    caption: str
    line: str


_ROOM = "benchmarks.gpu_check"
_DECODING = "{shape}, {rows} rows: {tokens_per_s:,.0f} tokens a second, {share:.0%} of the limit"
DEVICE = "device"
# In the order of their value: the total limit of the check cuts the last ones.
PARTS = {
    DEVICE: Part(
        f"{_ROOM}.device:device",
        40,
        "The device, the bandwidth of a copy and the rate of a matmul",
        "{device}, {memory_gb:.0f} GB: {gb_per_s:,.0f} GB/s, {matmul_tflops_per_s:,.0f} TFLOP/s",
    ),
    "tests": Part(
        f"{_ROOM}.gpu_tests:gpu_tests",
        100,
        "Tests marked `gpu`",
        "`{file}`: {passed} passed, {failed} failed, {skipped} skipped, {not read} not read",
    ),
    "kernels": Part(
        f"{_ROOM}.attention:kernels",
        60,
        "Attention of 16 rows' step, and of reading 9 tokens, in bfloat16 against float64",
        "{pass} over {columns} columns, {kernel} kernels: largest error {largest_error:.4f}, {us:.0f} µs",
    ),
    "new shapes": Part(
        f"{_ROOM}.attention:new_shapes",
        70,
        "A length that comes up for the first time, and again",
        "{pass}, cuDNN {cuDNN}: {new_s:.4f} s, then {again_s:.4f} s",
    ),
    "decoding": Part(
        f"{_ROOM}.decoding:decoding",
        90,
        "Decoding against the limit of memory bandwidth (arithmetic)",
        _DECODING,
    ),
    "adapters": Part(
        f"{_ROOM}.decoding:adapters",
        60,
        "Decoding 16 rows at 1.7B, and the difference of log-probs to training",
        "adapters {adapters}: {tokens_per_s:,.0f} tokens a second, mean difference {mean_logp_gap:.4f}",
    ),
    "update": Part(
        f"{_ROOM}.update:updates",
        70,
        "An update of whole weights: model FLOPs utilisation",
        "{shape}: {tflops_per_s:,.0f} TFLOP/s, {mfu:.0%} of the data sheet, {of_matmul:.0%} of a matmul",
    ),
    "iteration": Part(
        f"{_ROOM}.iteration:iteration",
        150,
        "An iteration at 8B with LoRA and its reward model, 16 episodes of 3,100 tokens",
        "{part}: {seconds:.0f} s, {peak_gb:.1f} GB",
    ),
    "FSDP2": Part(
        f"{_ROOM}.iteration:fsdp2",
        70,
        "GRPO of whole float32 weights at 0.6B under FSDP2 on one rank, two iterations",
        "{seconds:.0f} s, {peak_gb:.1f} GB",
    ),
    "decoding 8B": Part(f"{_ROOM}.decoding:decoding_8b", 80, "Decoding at 8B", _DECODING),
}


def load(function: str) -> Callable[[Size], Iterator[Row]]:
    """The function of a part."""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


def main() -> None:
    """Run the function `argv[1]`, tiny if `argv[2]` says so, and append its rows to the file `argv[3]`."""
    function, tiny, path = sys.argv[1:]
    with open(path, "a") as file:
        for row in load(function)(Size(tiny == "tiny")):
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main()

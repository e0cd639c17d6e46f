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
    """

    function: str
    limit_s: float
    caption: str


ROOM, DEVICE = "benchmarks.gpu_check", "device"
# In the order of their value: the total limit of the check cuts the last ones.
PARTS = {
    DEVICE: Part(f"{ROOM}.device:device", 40, "Bandwidth of a copy and rate of a matmul"),
    "tests": Part(f"{ROOM}.gpu_tests:gpu_tests", 100, "Tests marked `gpu`"),
    "kernels": Part(f"{ROOM}.attention:kernels", 60, "Attention in bfloat16 against float64, by what may compute it"),
    "new shapes": Part(f"{ROOM}.attention:new_shapes", 70, "Seconds of a length that is new, and of it again"),
    "decoding": Part(f"{ROOM}.decoding:decoding", 90, "Decoding against the limit of bandwidth (arithmetic)"),
    "adapters": Part(f"{ROOM}.decoding:adapters", 60, "Decoding with LoRA, and log-probs against training's"),
    "update": Part(f"{ROOM}.update:updates", 70, "Model FLOPs utilisation of an update of whole weights"),
    "iteration": Part(f"{ROOM}.iteration:iteration", 150, "GRPO at 8B with LoRA and its reward model, 16 episodes"),
    "FSDP2": Part(f"{ROOM}.iteration:fsdp2", 70, "GRPO of float32 weights at 0.6B under FSDP2 on one rank"),
    "decoding 8B": Part(f"{ROOM}.decoding:decoding_8b", 80, "Decoding at 8B against the limit of bandwidth"),
    "vLLM": Part(f"{ROOM}.engine:engine", 240, "Decoding with LoRA through vLLM and in process, and its handovers"),
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

"""Sampling through vLLM compared with sampling in process, and the handovers to its server between two iterations."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_check.decoding import LINEAR, decoded, one_turn
from benchmarks.gpu_check.parts import Row, Size
from benchmarks.measures import Stopwatch
from benchmarks.qwen3_shapes import SHAPES, untrained
from modules.lora import LoRA
from modules.samplers.in_process import InProcessSampler
from modules.samplers.vllm.command import installed_version, on_cpu
from modules.samplers.vllm.engine import ENGINE_PYTHON, VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler


def engine(size: Size) -> Iterator[Row]:
    """Tokens a second of each sampler with LoRA, then seconds to hand over adapters, to sleep and to wake."""
    python = interpreter()
    if python is None:
        yield {"sampler": "vLLM", "skipped": "vLLM is not installed"}
        return
    name, counts = size.of("0.6B", "tiny"), size.of((16, 64), (2,))
    policy, context = untrained(SHAPES[name], device=size.device), one_turn(1, size).context
    LoRA(trainable_tokens=False, targets=LINEAR).apply(policy)
    settings = {"rows": max(counts), "cache_gib": size.of(8, 1), "python": str(python), "restarts": 0}
    server = VLLMEngine(context, adapters=True, sleeps=not on_cpu(python), start_timeout=150.0, **settings)
    through = VLLMSampler(server, policy, temperature=1.0)
    try:
        in_process = InProcessSampler(policy, temperature=1.0, batch_size=max(counts))
        for sampler, said in ((in_process, "in process"), (through, f"vLLM {installed_version(python)}")):
            for count in counts:
                figures = decoded(sampler, policy, one_turn(count, size), repeats=size.of(2, 1))
                row: Row = {"sampler": said, "shape": name, "rows": count} | figures
                yield row | {"tokens_per_s": figures["tokens"] / figures["seconds"]}
        through.load(policy)
        steps = {"adapters handed over and proved": server.make_ready}
        if server.sleeps:
            steps |= {"sleep": server.rest, "wake": server.make_ready}
        for step, run in steps.items():
            watch = Stopwatch()
            run()
            yield {"sampler": "vLLM", "step": step, "seconds": watch.read()["seconds"]}
    finally:
        server.close()


def interpreter() -> Path | None:
    """Python with the vLLM to measure: VLLM_PYTHON, else that of `make engine`, else this one; None if none has it."""
    if named := os.environ.get("VLLM_PYTHON"):
        return Path(named)
    if ENGINE_PYTHON.exists():
        return ENGINE_PYTHON
    return Path(sys.executable) if find_spec("vllm") else None

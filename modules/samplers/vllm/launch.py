"""Start of a vLLM server: waiting until it answers, and the reason where it does not."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import torch

from modules.samplers.vllm.client import NoAnswer, VLLMClient
from modules.samplers.vllm.watched_process import WatchedProcess

_OF_MEMORY = re.compile(r"\w*Error: .*(?:out of memory|memory on |available memory|cache memory).*", re.IGNORECASE)


def free_unused_gpu_memory() -> None:
    """Give back what this process has reserved on its GPU and does not use: a server shares it."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def wait_until_up(client: VLLMClient, process: WatchedProcess | None, seconds: float) -> None:
    """Wait until a server answers.

    Args:
        process: the server's, where it was started here.

    Raises:
        NoAnswer: the time is up, or the process has ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        answers = client.healthy()
        if process is not None and process.ended:  # then another server may have answered at its port
            raise NoAnswer("it ended as it started")
        if answers:
            return
        if time.monotonic() > deadline:
            raise NoAnswer(f"{client.url} is not up after {seconds:g} s")
        time.sleep(0.2)


def last_words(server_log: Path) -> str:
    """What a server said last, on one line; where it lacked memory its own words about that, and the remedy."""
    text = server_log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    end = " | ".join(lines[-3:]) or "nothing"
    if not (short := [found[0] for line in lines if (found := _OF_MEMORY.search(line))]):
        return end
    if "cache is needed" in short[-1]:
        return f"{short[-1]}: raise the engine's cache_gib or lower its context"
    return f"{short[-1]}: lower the engine's cache_gib or rows, or set sleeps: true on a GPU"


def kept(server_log: Path) -> Path:
    """A copy of what a server has printed, which outlives the folder of its weights."""
    return Path(shutil.copy(server_log, Path(tempfile.gettempdir()) / f"vllm-{os.getpid()}.log"))

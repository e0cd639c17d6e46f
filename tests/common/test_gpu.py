"""GPU settings of a process: what is set before its first model, and what the user has set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common.gpu import prepare_gpu

ROOT = Path(__file__).parents[2]
NAMES = ("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "XLA_PYTHON_CLIENT_PREALLOCATE")


@pytest.mark.parametrize("room", ["modules.policy", "benchmarks.qwen3_shapes"])
def test_a_process_that_can_make_a_model_has_set_them(room: str) -> None:
    code = f"import os, torch, {room}; print(torch.backends.cuda.cudnn_sdp_enabled(), *map(os.environ.get, {NAMES}))"
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=clean, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", ":4096:8", "expandable_segments:True", "None", "false"]


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        prepare_gpu()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert "PYTORCH_ALLOC_CONF" not in os.environ

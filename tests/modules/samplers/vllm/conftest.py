"""A sampler in front of the scripted server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.policy import Policy
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler
from tests.toy_rl import small_policy
from tests.vllm_server import VLLMServer, vllm_server

Made = Callable[..., VLLMSampler]


@pytest.fixture
def server() -> Iterator[VLLMServer]:
    with vllm_server() as running:
        yield running


@pytest.fixture
def made(server: VLLMServer, tmp_path: Path) -> Made:
    def make(policy: Policy | None = None, *, engine: dict[str, Any] | None = None, **settings: Any) -> VLLMSampler:
        own = {"dtype": "float32", "urls": [server.url], "scratch": str(tmp_path), "timeout": 20.0} | (engine or {})
        return VLLMSampler(VLLMEngine(256, **own), policy or small_policy(), **settings)

    return make


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module that `python -m vllm.entrypoints.openai.api_server` runs; its text is to be written."""
    module = tmp_path / "packages" / "vllm" / "entrypoints" / "openai" / "api_server.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    return module

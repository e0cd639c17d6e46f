"""Reinforcement learning through `train.py` with an engine: killed, its weights are sent again and proved."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tests.micro import run
from tests.test_rl import artifact, config, process, watched, weights
from tests.vllm_server import VLLMServer, vllm_server

pytestmark = pytest.mark.usefixtures("without_reports")


def with_engine(path: Path, *servers: VLLMServer) -> Path:
    """The stage of `tests.test_rl`, which samples from servers, one a rank."""
    content = yaml.safe_load(path.read_text())
    (path.parent / "scratch").mkdir(exist_ok=True)
    engine = {"target": "modules.samplers.vllm.engine:VLLMEngine", "context": 256, "dtype": "float32"}
    engine |= {"urls": [server.url for server in servers], "scratch": str(path.parent / "scratch")}
    rollout = content["stages"]["rl"]["callbacks"]["rollout"]
    rollout["sampler"] = {"target": "modules.samplers.vllm.sampler:VLLMSampler", "engine": engine, "temperature": 1.0}
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_weights_that_it_had(tmp_path: Path) -> None:
    """The scripted server computes every turn alone, so here even the bytes are those of a run that was not killed."""
    with vllm_server() as server:
        unbroken = with_engine(config(tmp_path / "unbroken", max_epochs=2), server)
        assert run(config=unbroken) == 0
        before = server.control().count("/update_weights")
        assert before == 2

        killed = with_engine(config(tmp_path / "killed", moment="update", max_epochs=2), server)
        assert process(killed).returncode == -signal.SIGKILL
        assert not (artifact(killed.parent) / "manifest.json").exists()
        assert run(config=killed) == 0
        assert watched(killed.parent, "epochs") == [0, 1], "the second run goes on, it does not start again"
        assert server.control().count("/update_weights") == before + 2 + 1, "one iteration twice"
    assert weights(killed.parent) == weights(unbroken.parent)


def test_each_rank_sends_the_weights_to_its_own_server(tmp_path: Path) -> None:
    with vllm_server() as one, vllm_server() as other:
        path = with_engine(config(tmp_path, devices=2, strategy="ddp", max_epochs=2), one, other)
        ended = process(path)
        assert ended.returncode == 0, ended.stderr
        assert [server.control().count("/update_weights") for server in (one, other)] == [2, 2]

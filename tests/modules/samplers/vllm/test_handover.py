"""Adapters alone on their way to a server: what is written and asked for, what fails, what is started again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
import torch

from common.errors import ConfigError, EngineError
from envs.sampling import take_turns
from modules.lora import LoRA
from modules.policy import Policy
from modules.samplers.vllm.client import NoAnswer, VLLMClient
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.handover import AdaptersAlone, WholeWeights
from modules.samplers.vllm.sampler import VLLMSampler
from tests.modules.samplers.vllm.conftest import Made
from tests.modules.samplers.vllm.test_command import SERVES, running
from tests.modules.samplers.vllm.test_sampler import asked, forward
from tests.raw_server import HEAD, raw_server
from tests.toy_rl import small_policy
from tests.vllm_server import VLLMServer

ALONE = {"adapters": True}
UNLOAD = "/v1/unload_lora_adapter"
ROUTES = ["/pause?mode=wait", "/v1/load_lora_adapter", "/update_weight_version", "/resume"]


def adapted(r: int = 2) -> Policy:
    """A policy with an adapter that counts."""
    torch.manual_seed(0)
    policy = small_policy()
    LoRA(r=r, alpha=2 * r, trainable_tokens=False).apply(policy)
    change(policy)
    return policy


def change(policy: Policy) -> None:
    """Another adapter."""
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.2)


@pytest.fixture
def on_base(server: VLLMServer) -> VLLMServer:
    """A server that was started on the base model."""
    server.policy = small_policy()
    return server


def test_every_adapter_is_loaded_under_a_name_of_its_own_and_sampled_from(made: Made, on_base: VLLMServer) -> None:
    policy = adapted()
    sampler = made(policy, engine=ALONE, temperature=1.0)
    requests, firsts = asked(3), []
    for _ in range(3):
        turns = take_turns(sampler, requests)
        fresh = [forward(policy, one, turn.action_ids, 1.0) for one, turn in zip(requests, turns, strict=True)]
        assert torch.cat(fresh) == pytest.approx([logp for turn in turns for logp in turn.action_logps], abs=1e-5)
        firsts.append(round(float(fresh[0][0]), 3))
        change(policy)
        sampler.load(policy)
    assert len(set(firsts)) == 3, "the adapters differ, and nothing cached of an earlier one is used"
    assert on_base.control() == [*ROUTES, *([*ROUTES, UNLOAD] * 2)], "an earlier one goes once a new one is proved"
    named = [body["model"] for path, body in on_base.calls if path.endswith("/generate") and "model" in body]
    assert len(dict.fromkeys(named)) == 3
    assert on_base.known == named[-1:]
    [kept] = sampler.engine._handover.folder.glob("weights-*")
    assert {one.name for one in kept.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.parametrize(
    ("path", "fault"), [*((path, "hangs up") for path in ROUTES), (ROUTES[1], 500), ("proof", 500)]
)
def test_an_update_that_fails_is_made_anew(made: Made, on_base: VLLMServer, path: str, fault: int | str) -> None:
    policy = adapted()
    sampler = made(policy, engine=ALONE, temperature=1.0)
    before = take_turns(sampler, asked(2))
    on_base.faults_by_path = {path: [fault]}
    sampler.load(policy)
    assert [t.action_ids for t in take_turns(sampler, asked(2))] == [t.action_ids for t in before]
    assert not on_base.faults_by_path[path], "it came up"
    assert [sampler.engine._handover.adapter] == on_base.known, "of those that an update left behind too"
    assert (sampler.engine.life, sampler.engine.gap < 1e-5) == (2, True)


def test_a_server_without_the_adapter_that_was_asked_for_ends_the_run(made: Made, on_base: VLLMServer) -> None:
    first, second = (made(adapted(), engine=ALONE, temperature=1.0) for _ in range(2))
    take_turns(first, asked(1))
    take_turns(second, asked(1))
    with pytest.raises(EngineError, match="answered 404 Not Found: no such model"):
        take_turns(first, asked(1))


def test_an_answer_of_another_adapter_ends_the_run() -> None:
    def answers(connection: socket.socket) -> None:
        body = b'{"model": "base", "choices": [{}]}'
        connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    with raw_server(answers) as url, pytest.raises(EngineError, match="sampled by base, not by adapter weights-1"):
        VLLMClient(url, timeout=5.0).generate((1, 2), {"max_tokens": 1}, weights="w", adapter="weights-1")


def test_an_adapter_that_the_server_refuses_is_no_answer(made: Made, on_base: VLLMServer) -> None:
    on_base.faults_by_path = {"/v1/load_lora_adapter": [500] * 9}
    with pytest.raises(EngineError, match="gave no answer after 2 restarts: /v1/load_lora_adapter answered 500"):
        made(adapted(), engine=ALONE).submit(asked(1))


def test_policies_whose_adapters_cannot_go_alone_are_refused(made: Made) -> None:
    with pytest.raises(ConfigError, match=r"needs a policy that has LoRA adapters: give the module `lora`, or leave"):
        made(small_policy(), engine=ALONE)
    trained_rows = small_policy()
    LoRA(r=2).apply(trained_rows)
    with pytest.raises(ConfigError, match="cannot serve trained rows of tokens: give lora `trainable_tokens: false`"):
        made(trained_rows, engine=ALONE)
    with pytest.raises(ConfigError, match="takes a rank of 512 at most, lora has r 513"):
        made(adapted(513), engine=ALONE)


@pytest.mark.parametrize(("r", "room"), [(1, "1"), (2, "8"), (16, "16"), (257, "320")])
def test_a_server_has_room_for_the_rank(r: int, room: str) -> None:
    assert AdaptersAlone("float32", None).flags(adapted(r)) == ["--enable-lora", "--max-lora-rank", room]
    assert "--enable-lora" not in WholeWeights("float32", None).flags(adapted(r))


def test_the_base_is_written_without_the_adapters_and_in_the_servers_type(tmp_path: Path) -> None:
    handover, policy = AdaptersAlone("bfloat16", str(tmp_path)), adapted()
    written, plain = handover.start(policy, "weights-1"), small_policy()
    plain.model.to(torch.bfloat16)
    plain.save(tmp_path / "plain")
    assert (written / "model.safetensors").read_bytes() == (tmp_path / "plain" / "model.safetensors").read_bytes()
    change(policy)
    assert handover.start(policy, "weights-2") == written


@pytest.mark.slow
def test_a_killed_server_is_started_again_on_the_base_with_the_present_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Path
) -> None:
    """Awake and asleep; here with a stand-in for vLLM, said to be built for a GPU."""
    stand_in.write_text(f"import sys; print(*sys.argv, flush=True)\n{SERVES}")
    monkeypatch.setattr("modules.samplers.vllm.engine.on_cpu", lambda python: False)
    settings = {"dtype": "float32", "python": sys.executable, "scratch": str(tmp_path), "timeout": 20.0}
    engine = VLLMEngine(256, adapters=True, sleeps=True, **settings)  # type: ignore[arg-type]
    policy = adapted()
    sampler = VLLMSampler(engine, policy, temperature=1.0)
    take_turns(sampler, asked(1))
    change(policy)
    sampler.load(policy)
    before = [turn.action_ids for turn in take_turns(sampler, asked(3))]
    for asleep in (False, True):
        if asleep:
            sampler.rest()
        for process in running(tmp_path)[1:]:  # the first watches
            os.kill(process, signal.SIGKILL)
        assert [turn.action_ids for turn in take_turns(sampler, asked(3))] == before
    assert engine.life == 3
    assert engine._process is not None
    started = engine._process.log.read_text().splitlines()[0]
    assert f"--model {engine._handover.folder / 'base'} " in started
    assert started.endswith("--enable-lora --max-lora-rank 8 --enable-sleep-mode")
    engine.close()


def test_a_server_that_was_left_paused_is_given_its_adapter(made: Made, on_base: VLLMServer) -> None:
    """As where a run was killed in an update."""
    VLLMClient(on_base.url, timeout=5.0)._json("POST", "/pause?mode=wait")
    sampler = made(adapted(), engine=ALONE, temperature=1.0)
    assert take_turns(sampler, asked(1))[0].action_ids
    assert sampler.engine.life == 1


def test_a_name_that_the_server_has_already_is_no_answer(made: Made, on_base: VLLMServer) -> None:
    sampler = made(adapted(), engine=ALONE, temperature=1.0)
    take_turns(sampler, asked(1))
    loaded = next(body for path, body in on_base.calls if path == "/v1/load_lora_adapter")
    with pytest.raises(NoAnswer, match="already been loaded"):
        VLLMClient(on_base.url, timeout=5.0).load_adapter(loaded["lora_path"], loaded["lora_name"], "again")


def test_what_a_killed_run_leaves_is_removed_by_the_next_and_no_other(tmp_path: Path) -> None:
    lives = WholeWeights("float32", str(tmp_path))
    (lives.folder / "weights-1").mkdir()
    if not (child := os.fork()):
        try:
            killed = WholeWeights("float32", str(tmp_path))
            (killed.folder / "weights-2").mkdir()
        finally:  # nothing of this process may run on in the child
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    [left] = {one for one in tmp_path.iterdir() if one.is_dir()} - {lives.folder}
    (other := tmp_path / "of-another-program").mkdir()
    new = WholeWeights("float32", str(tmp_path))
    assert {one for one in tmp_path.iterdir() if one.is_dir()} == {lives.folder, left, other}
    assert {new.folder, lives.folder, other} == {one for one in tmp_path.iterdir() if one.is_dir()}
    assert (lives.folder / "weights-1").is_dir()
    del lives, new
    assert list(tmp_path.iterdir()) == [other]

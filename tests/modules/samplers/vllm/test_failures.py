"""A server that fails: what is asked again, what starts it again, what ends the run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from common.cancellable_request import CancellableRequest
from common.errors import EngineError
from envs.sampling import take_turns
from modules.samplers.vllm.client import NoAnswer, VLLMClient
from tests.modules.samplers.vllm.conftest import Made
from tests.modules.samplers.vllm.test_sampler import asked
from tests.toy_rl import small_policy
from tests.vllm_server import VLLMServer


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"weight_versions": [{"version": "weights-other-000001", "start": 0, "end": 6}]},
            "sampled by weights weights-other-000001",
        ),
        ({"weight_versions": None}, "sampled by weights without a version"),
        ({"token_ids": []}, "0 token ids with"),
        ({"logprobs": None}, "unusable answer"),
        ({"token_ids": [0], "logprobs": {"content": [{"logprob": -9999.0}]}}, "a sampled token has log-prob -9999.0"),
        ({"finish_reason": "abort"}, "for no known reason: abort"),
        (
            {"finish_reason": "length", "token_ids": [0], "logprobs": {"content": [{"logprob": -1.0}]}},
            "turn of 1 tokens",
        ),
    ],
)
def test_an_answer_that_cannot_be_trained_on_ends_the_run(
    made: Made, server: VLLMServer, change: dict[str, Any], reason: str
) -> None:
    server.faults = [lambda choice: choice.update(change)]
    sampler = made(temperature=1.0)
    sampler.submit(asked(1, stop=()))
    with pytest.raises(EngineError, match=reason):
        sampler.collect()


@pytest.mark.parametrize("fault", ["hangs up", 500, "late"])
def test_a_lost_turn_is_asked_again_with_its_seed(made: Made, server: VLLMServer, fault: int | str) -> None:
    expected = take_turns(made(temperature=1.0), asked(3))
    server.calls.clear()
    server.faults = [None, fault]
    sampler = made(temperature=1.0, engine={"timeout": 2.0})
    assert [t.action_ids for t in take_turns(sampler, asked(3))] == [t.action_ids for t in expected]
    assert sampler.counts["turns_asked_again"] == 1
    assert len(server.turns()) == 4
    assert server.control().count("/update_weights") == 2, "a server that came back has its weights sent again"


def test_a_busy_server_is_waited_for(made: Made, server: VLLMServer) -> None:
    server.faults = [503, 429]
    sampler = made(temperature=1.0)
    assert len(take_turns(sampler, asked(1))) == 1
    assert sampler.engine.life == 1
    assert sampler.counts["turns_asked_again"] == 0


def test_a_server_that_stays_down_ends_the_run_with_one_line(made: Made, server: VLLMServer) -> None:
    server.faults = [500] * 9
    sampler = made(temperature=1.0, engine={"restarts": 2})
    sampler.submit(asked(1))
    with pytest.raises(
        EngineError, match=r"gave no answer after 2 restarts: /inference/v1/generate answered 500"
    ) as it:
        sampler.collect()
    assert "\n" not in str(it.value)
    assert len(server.turns()) == 3


@pytest.mark.parametrize("fault", ["hangs up", 500])
@pytest.mark.parametrize(
    "path", ["/pause?mode=wait", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume", "proof"]
)
def test_an_update_that_fails_is_made_anew(made: Made, server: VLLMServer, path: str, fault: int | str) -> None:
    policy = small_policy()
    expected = take_turns(made(policy, temperature=1.0), asked(2))
    sampler = made(policy, temperature=1.0)
    take_turns(sampler, asked(1))
    server.faults_by_path = {path: [fault]}
    sampler.load(policy)
    assert [t.action_ids for t in take_turns(sampler, asked(2))] == [t.action_ids for t in expected]
    assert not server.faults_by_path[path], "it came up"
    finished_and_started_again = (path, fault) == ("/start_weight_update", "hangs up")
    assert sampler.engine.life == (1 if finished_and_started_again else 2)
    assert sampler.engine.gap < 1e-5


def test_a_run_goes_on_where_another_was_killed_in_an_update(made: Made, server: VLLMServer) -> None:
    """The server, which lives on, refuses to start an update while one is under way."""
    killed = VLLMClient(server.url, timeout=5.0)
    for path in ("/pause?mode=wait", "/start_weight_update"):
        killed._json("POST", path)
    [turn] = take_turns(sampler := made(temperature=1.0), asked(1))
    assert turn.action_ids
    assert sampler.engine.life == 1, "no try was lost on it"


def test_a_server_for_shorter_sequences_is_refused(made: Made, server: VLLMServer) -> None:
    server.context = 128
    with pytest.raises(EngineError, match="takes sequences of 128 tokens, the engine's context is 256: start it with"):
        made(temperature=1.0).submit(asked(1))


def test_a_turn_of_a_released_episode_is_dropped_though_another_one_failed(made: Made, server: VLLMServer) -> None:
    server.faults = [None, 400]
    sampler, requests = made(temperature=1.0), asked(2)
    for number, request in enumerate(requests, 1):
        sampler.submit([request])
        while sampler._answers.qsize() < number:
            time.sleep(0.01)
    with pytest.raises(EngineError, match="answered 400"):
        sampler.collect()
    sampler.release([request.episode for request in requests])
    assert take_turns(sampler, asked(1))[0].action_ids
    assert sampler.poll() == []


def test_a_server_with_log_probs_of_another_distribution_is_refused(made: Made, server: VLLMServer) -> None:
    server.raw_logprobs = True
    with pytest.raises(EngineError, match="start it with --logprobs-mode processed_logprobs"):
        made(temperature=0.8).submit(asked(1))


def test_updates_that_go_on_failing_end_the_run(made: Made, server: VLLMServer) -> None:
    server.faults_by_path = {"/update_weights": [500] * 9}
    with pytest.raises(EngineError, match="gave no answer after 2 restarts: /update_weights answered 500"):
        made(temperature=1.0).submit(asked(1))


def test_a_released_turn_is_given_up_at_the_server(made: Made, server: VLLMServer) -> None:
    """Else an update would wait until it has been sampled to its end."""
    server.faults = [None, "held"]
    sampler, requests = made(temperature=1.0), asked(2)
    sampler.submit(requests[:1])
    assert len(sampler.collect()) == 1
    sampler.submit(requests[1:])
    assert server.holds.wait(10)
    sampler.release([requests[1].episode])
    assert server.given_up.wait(3), "before the time of a turn is up"
    assert not sampler.waits
    assert sampler.poll() == []


def test_a_call_that_is_given_up_before_it_is_connected_ends_too(server: VLLMServer) -> None:
    server.faults = ["held"]
    call = CancellableRequest()
    call.give_up()
    with pytest.raises(NoAnswer, match=r"^((?!timed out).)*$"):
        VLLMClient(server.url, timeout=3.0).generate((1, 2), {"max_tokens": 2}, weights="w", call=call)


def test_a_request_that_is_wrong_is_not_asked_again(made: Made, server: VLLMServer) -> None:
    server.faults = [400]
    sampler = made(temperature=1.0)
    sampler.submit(asked(1))
    with pytest.raises(EngineError, match="answered 400"):
        sampler.collect()

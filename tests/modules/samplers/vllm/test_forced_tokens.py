"""Given tokens scored through a server: the policy's own log-probs, each sequence whole, asked again where lost."""

from __future__ import annotations

from typing import Any

import pytest

from common.costs import read_by
from common.errors import EngineError
from envs.requests import forced_request
from modules.samplers.in_process import InProcessSampler
from tests.modules.samplers.vllm.conftest import Made
from tests.toy_rl import small_policy
from tests.vllm_server import VLLMServer

PREFIX = (3, 1, 4, 1, 5)
# Three letters after one prefix, and texts of several tokens after prefixes of any length.
ASKED = [(PREFIX, (0,)), (PREFIX, (1,)), (PREFIX, (2,)), ((5,), (2, 6, 5)), (PREFIX * 4, (3, 3))]
REQUESTS = [forced_request(prefix, ids, agent="router") for prefix, ids in ASKED]


def test_scores_are_those_of_the_policy_in_this_process(made: Made, server: VLLMServer) -> None:
    sampler, policy = made(temperature=0.7), small_policy()
    for own, expected in zip(sampler.score(REQUESTS), InProcessSampler(policy).score(REQUESTS), strict=True):
        assert own == pytest.approx(expected, abs=1e-5), "at temperature 1, whatever the sampler's"
    asked = [body for _, body in server.calls if body.get("sampling_params", {}).get("prompt_logprobs") == 0]
    assert sorted(body["token_ids"] for body in asked) == sorted([*prefix, *ids] for prefix, ids in ASKED)
    assert sampler.counts == {read_by("router"): sum(len(prefix + ids) for prefix, ids in ASKED)}
    assert sampler.score([]) == []


@pytest.mark.parametrize("fault", [500, "hangs up"])
def test_what_gave_no_answer_is_asked_again(made: Made, server: VLLMServer, fault: Any) -> None:
    sampler = made(engine={"restarts": 1})
    sampler.score(REQUESTS[:1])
    server.faults_by_path["proof"] = [fault]
    assert [list(one) for one in sampler.score(REQUESTS)] == [
        pytest.approx(one, abs=1e-5) for one in InProcessSampler(small_policy()).score(REQUESTS)
    ]
    assert sampler.engine.life == 2


def _shortened(choice: dict[str, Any]) -> None:
    choice["prompt_logprobs"].pop()


def _infinite(choice: dict[str, Any]) -> None:
    choice["prompt_logprobs"][-1][str(ASKED[0][1][0])]["logprob"] = float("nan")


@pytest.mark.parametrize(
    ("change", "line"), [(_shortened, "log-probs of 5 tokens for a prompt of 6"), (_infinite, "nan")]
)
def test_an_answer_without_the_log_probs_is_no_score(made: Made, server: VLLMServer, change: Any, line: str) -> None:
    sampler = made()
    sampler.score(REQUESTS[:1])
    server.faults_by_path["proof"] = [change]
    with pytest.raises(EngineError, match=line):
        sampler.score(REQUESTS[:1])


def test_a_request_without_tokens_to_score_is_an_error(made: Made) -> None:
    with pytest.raises(ValueError, match="needs forced_ids, and tokens before them"):
        made().score([forced_request(PREFIX, (), agent="router")])

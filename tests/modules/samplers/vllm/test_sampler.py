"""The sampler behind a server: exact ids and log-probs, free-running episodes, weights that are proved, failures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.costs import tokens_of
from common.errors import ConfigError, EngineError
from envs.requests import Request
from envs.sampling import ByAgent, Greedy, take_turns
from envs.types import Episode, Limits, Question
from modules.functional.credit import gae_credit
from modules.functional.logprobs import token_logprobs
from modules.lora import LoRA
from modules.policy import Policy
from modules.ppo import PPO
from modules.samplers.in_process import InProcessSampler
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler
from modules.samplers.vllm.served_weights import fixed_prompts
from tests.modules.samplers.vllm.conftest import Made
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_rl import environment, learn, small_policy
from tests.vllm_server import VLLMServer

STOP = ("</step>",)


def asked(count: int, *, tokens: int = 6, stop: tuple[str, ...] = STOP) -> list[Request]:
    """Requests after prompts of different lengths, the same for the same number."""
    episodes = [Episode(Question(f"q{n}", "?", ("a",)), tuple((n + i) % 5 for i in range(3 + n))) for n in range(count)]
    return [Request(e, (1,), stop, max_tokens=tokens, seed=2**62 + n) for n, e in enumerate(episodes)]


def forward(policy: Policy, request: Request, ids: tuple[int, ...], temperature: float) -> torch.Tensor:
    """Log-probs of sampled ids by one forward pass of the policy."""
    prefix = request.prefix()
    both = torch.tensor([[*prefix, *ids]])
    with torch.no_grad():
        logits = policy.model(both).logits[:, len(prefix) - 1 : -1]
    return token_logprobs(logits, both[:, len(prefix) :], temperature)[0]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 0.0])
def test_ids_and_logprobs_are_those_of_one_training_pass(made: Made, server: VLLMServer, temperature: float) -> None:
    policy = small_policy()
    sampler, requests = made(policy, temperature=temperature), asked(5)
    for request, turn in zip(requests, take_turns(sampler, requests), strict=True):
        fresh = forward(policy, request, turn.action_ids, temperature or 1.0)
        assert torch.tensor(turn.action_logps) == pytest.approx(fresh, abs=1e-5)
        assert turn.text == policy.tokenizer.decode(turn.action_ids)
    sent = [tuple(body["token_ids"]) for path, body in server.calls if path.endswith("/generate")]
    assert set(sent[-5:]) == {request.prefix() for request in requests}, "after the fixed prompts, the very ids"
    assert sorted(params["seed"] for params in server.turns()) == [2**62 + n for n in range(5)]
    assert sampler.counts[tokens_of("policy")] > 5


def test_a_turn_ends_at_a_tag_at_the_end_of_the_message_or_at_its_limit(made: Made) -> None:
    requests = asked(24, tokens=12)
    turns = take_turns(made(temperature=1.0), requests)
    eos = small_policy().tokenizer.eos_token_id
    assert {turn.finish for turn in turns} == {"stop", "eos", "length"}
    for turn in turns:
        ends = {"stop": turn.text.endswith("</step>"), "eos": turn.action_ids[-1] == eos}
        assert ends.get(turn.finish, len(turn.action_ids) == 12)


def test_a_turn_is_the_same_in_other_company_and_greedy_where_asked(made: Made) -> None:
    together = take_turns(made(temperature=1.0), asked(6))
    alone = [take_turns(made(temperature=1.0), [request])[0] for request in asked(6)]
    assert [turn.action_ids for turn in alone] == [turn.action_ids for turn in together]
    greedy = take_turns(Greedy(made(temperature=1.0)), asked(6))
    assert [t.action_ids for t in greedy] == [t.action_ids for t in take_turns(made(temperature=0.0), asked(6))]


def test_two_policies_on_one_server_are_never_mixed_up(made: Made) -> None:
    """The second engine's update replaces the first one's weights, and both have made as many updates."""
    first, second = made(temperature=1.0), made(small_policy(seed=1), temperature=1.0)
    take_turns(first, asked(1))
    take_turns(second, asked(1))
    with pytest.raises(EngineError, match="sampled by weights weights-"):
        take_turns(first, asked(1))


def test_agents_with_policies_of_their_own_must_name_a_server_each(made: Made) -> None:
    sampler = made(temperature=1.0)
    agents = ByAgent({"a": sampler, "b": sampler})
    with pytest.raises(ConfigError, match="need a vLLM server each, and http://127"):
        agents.load({"a": small_policy(), "b": small_policy(1)})


def test_a_slow_turn_keeps_no_other_waiting(made: Made, server: VLLMServer) -> None:
    server.delay = lambda sampling: 1.5 if sampling.get("seed") == 2**62 else 0.0
    sampler, requests = made(temperature=1.0), asked(4)
    sampler.submit(requests)
    start, first = time.monotonic(), []
    while len(first) < 3:
        first += sampler.collect()
    assert time.monotonic() - start < 1.4
    assert requests[0] not in [request for request, _ in first]
    assert [request for request, _ in sampler.collect()] == [requests[0]]


def test_weights_are_updated_in_order_and_sampled_from(made: Made, server: VLLMServer) -> None:
    policy = small_policy()
    sampler = made(policy, temperature=1.0)
    [before] = take_turns(sampler, asked(1))
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(-1.0)
    sampler.load(policy)
    [after] = take_turns(sampler, asked(1))
    routes = ["/pause?mode=wait", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"]
    assert server.control() == routes * 2
    assert after.action_ids != before.action_ids
    assert torch.tensor(after.action_logps) == pytest.approx(
        forward(policy, asked(1)[0], after.action_ids, 1.0), abs=1e-5
    )
    take_turns(sampler, asked(1))
    assert server.control() == routes * 2, "nothing to update"
    assert len(list(Path(server.calls[2][1]["update_info"]["folder"]).parent.glob("weights-*"))) == 1


def test_adapters_are_merged_on_the_way(made: Made) -> None:
    policy = small_policy()
    LoRA(r=2, alpha=4).apply(policy)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name or "delta" in name:
                parameter.add_(0.3)
    request = asked(1)[0]
    [turn] = take_turns(made(policy, temperature=1.0), [request])
    assert torch.tensor(turn.action_logps) == pytest.approx(forward(policy, request, turn.action_ids, 1.0), abs=1e-4)
    plain = forward(small_policy(), request, turn.action_ids, 1.0)
    assert (torch.tensor(turn.action_logps) - plain).abs().max() > 0.01, "the adapters count"
    assert all(parameter.dtype == torch.float32 for parameter in policy.model.parameters())


def test_released_episodes_are_not_collected(made: Made) -> None:
    sampler, requests = made(temperature=1.0), asked(3)
    sampler.submit(requests)
    sampler.release([requests[0].episode, requests[2].episode])
    assert [request for request, _ in sampler.collect()] == [requests[1]]
    assert sampler.collect() == []


def test_reinforcement_learning_through_the_server(made: Made, server: VLLMServer, tmp_path: Path) -> None:
    sampler = made(temperature=1.0)
    _, watch, metrics = learn(tmp_path, iterations=3, lr=1e-2, rollout={"sampler": sampler}, policy=sampler.policy)
    assert metrics["logp_gap/max"] <= 1e-4, "the weights that sample are those that train, in every iteration"
    assert server.control().count("/update_weights") == 3
    assert any(not torch.equal(watch.before[0][name], watch.before[2][name]) for name in watch.before[0])


def test_a_rounding_engine_is_refused_where_its_log_probs_are_not_corrected(made: Made, tmp_path: Path) -> None:
    def run(dtype: str = "bfloat16", **settings: Any) -> dict[str, Any]:
        sampler = made(engine={"dtype": dtype}, temperature=1.0)
        given = {"iterations": 1, "rollout": {"sampler": sampler}, "policy": sampler.policy}
        return learn(tmp_path, **given, **settings)[2]

    with pytest.raises(ConfigError, match=r"in bfloat16, the trainer in float32, and GRPO .* with importance_cap: 2.0"):
        run()
    with pytest.raises(ConfigError, match="computes in bfloat16, the trainer in float32, and PPO"):
        run(module=PPO, critic_lr=1e-3, credit=gae_credit)
    with pytest.raises(ConfigError, match="computes in float32, the trainer in bf16-mixed, and GRPO"):
        run("float32", trainer={"precision": "bf16-mixed"})
    assert run(importance_cap=2.0)["importance/weight"] == pytest.approx(1.0, abs=0.1)


def test_agents_that_load_must_not_round_unless_that_is_corrected(made: Made) -> None:
    rounding, exact = made(engine={"dtype": "bfloat16"}), InProcessSampler(small_policy())
    agents = ByAgent({"a": rounding, "b": exact})
    agents.load({"b": small_policy()})
    assert agents.engine_dtype is None, "what a frozen agent says is not trained"
    agents.load({"a": rounding.policy})
    assert agents.engine_dtype == "bfloat16"


def test_what_does_not_fit_is_said_before_any_work(made: Made, tmp_path: Path) -> None:
    sampler = made()
    with pytest.raises(ConfigError, match=r"limits.total_tokens is 300, but the engine's context is 256"):
        sampler.check(environment(sampler.policy).protocol, Limits(total_tokens=300))
    with pytest.raises(ConfigError, match="different tokenizers"):
        sampler.check(environment(tiny_policy(byte_tokenizer())).protocol, Limits(total_tokens=100))
    with pytest.raises(ConfigError, match="cannot score the given tokens of agent 'policy'"):
        sampler.submit([Request(asked(1)[0].episode, (), STOP, forced_ids=(1,), max_tokens=1)])
    with pytest.raises(ConfigError, match="policies need a vLLM server each, and http://127"):
        sampler.load(small_policy())
    with pytest.raises(ConfigError, match="no policy"):
        VLLMSampler(sampler.engine).policy  # noqa: B018
    with pytest.raises(ConfigError, match="temperature -1"):
        made(temperature=-1.0)
    with pytest.raises(ConfigError, match=r"no vLLM at .*: run `make engine`"):
        VLLMEngine(64, python=str(tmp_path / "python"))
    with pytest.raises(ConfigError, match="give it `scratch`"):
        VLLMEngine(64, urls=["http://x"])
    with pytest.raises(ConfigError, match="context 0"):
        VLLMEngine(0, urls=["http://x"], scratch=".")


def test_each_rank_has_a_server_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="1 urls: each rank updates"):
        VLLMEngine(64, urls=["http://x"], scratch=".")


@given(st.integers(1, 200_000))
def test_the_fixed_prompts_lie_in_the_vocabulary(vocabulary: int) -> None:
    assert fixed_prompts(vocabulary, 3) == fixed_prompts(vocabulary, 3)
    assert all(0 <= token < vocabulary for prompt in fixed_prompts(vocabulary, 3) for token in prompt)


def test_the_manifest_says_what_is_not_promised(made: Made) -> None:
    sampler = made(temperature=1.0)
    take_turns(sampler, asked(1))
    facts = sampler.engine.manifest_facts
    assert (facts["engine"], facts["engine_dtype"]) == ("vllm 0.0.0", "float32")
    assert "not to the bit" in facts["engine_bits"]

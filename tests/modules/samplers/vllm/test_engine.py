"""The real engine, where `make engine` has installed it: tokens, seeds, ranks, new weights, a kill."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode, Question, Turn
from modules.functional.logprobs import token_logprobs
from modules.lora import LoRA
from modules.policy import Policy, random_policy
from modules.samplers.vllm.client import NoAnswer, VLLMClient
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler
from tests.modules.samplers.vllm.test_watched_process import eventually
from tests.tiny import byte_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.engine]
STOP = ("</step>", "ab")


def asked(count: int, length: int = 9) -> list[Request]:
    """Requests after prompts of different lengths that end in a control tag."""
    episodes = [
        Episode(Question(f"q{n}", "?", ("a",)), tuple((7 * n + i) % 250 for i in range(length + n)))
        for n in range(count)
    ]
    return [Request(e, (260,), STOP, max_tokens=24, seed=2**62 + n) for n, e in enumerate(episodes)]


def gap(policy: Policy, requests: list[Request], turns: list[Turn], temperature: float) -> float:
    """The largest difference between log-probs of the engine and of one forward pass."""
    largest = 0.0
    for request, turn in zip(requests, turns, strict=True):
        both = torch.tensor([[*request.prefix(), *turn.action_ids]])
        with torch.no_grad():
            logits = policy.model(both).logits[:, len(request.prefix()) - 1 : -1]
        fresh = token_logprobs(logits, both[:, len(request.prefix()) :], temperature)[0]
        largest = max(largest, float((fresh - torch.tensor(turn.action_logps)).abs().max()))
    return largest


def found(*by: str) -> list[str]:
    """The processes that `pgrep` finds."""
    return subprocess.run(["pgrep", *by], capture_output=True, text=True).stdout.split()


def small_but_sure(tokenizer: Path) -> Policy:
    """A policy that is sure enough of what it says for other weights to show."""
    byte_tokenizer().save_pretrained(tokenizer)
    policy = random_policy(tokenizer, hidden_size=64, layers=2, heads=2, kv_heads=1, feed_forward=128)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(3.0)
    return policy


def cached_tokens(client: VLLMClient) -> float:
    """How many tokens of prompts the server has read from its cache so far."""
    text = client._http.send("GET", "/metrics", timeout=5.0).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_total"))


def kill(folder: Path) -> None:
    """Kill the server whose command names a folder, not its watcher."""
    for process in found("-f", str(folder))[1:]:
        os.kill(int(process), signal.SIGKILL)


def half_a_layer(policy: Policy, folder: Path) -> None:
    """Write one of the three weights that vLLM joins to one, and a file that cannot be read after it."""
    folder.mkdir()
    name = "model.layers.0.self_attn.k_proj.weight"
    save_file({name: policy.model.state_dict()[name] * 2}, folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes(b"broken off")


def of_two_ranks(policy: Policy, url: str, scratch: Path) -> list[Turn]:
    """Turns of two ranks, of every second request each, which a server that runs already takes one after the other."""
    turns: list[Turn] = []
    for rank in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WORLD_SIZE", "2")
            patch.setenv("RANK", str(rank))
            own = VLLMEngine(512, dtype="float32", urls=[url] * 2, scratch=str(scratch))
        turns += take_turns(VLLMSampler(own, policy, temperature=0.8), asked(12)[rank::2])
    return turns


def test_a_real_engine_samples_what_is_trained(tmp_path: Path) -> None:
    policy = small_but_sure(tmp_path / "tokenizer")
    sampler = VLLMSampler(VLLMEngine(512, dtype="float32", scratch=str(tmp_path)), policy, temperature=0.8)
    first = take_turns(sampler, asked(12))
    assert gap(policy, asked(12), first, 0.8) < 1e-3
    assert {turn.finish for turn in first} <= {"stop", "eos", "length"}
    assert all(turn.text.endswith(STOP) for turn in first if turn.finish == "stop")
    assert [t.action_ids for t in take_turns(sampler, asked(12))] == [t.action_ids for t in first], "seeds"

    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(0.7)  # and the tied head
    sampler.load(policy)
    second = take_turns(sampler, asked(12))
    assert gap(policy, asked(12), second, 0.8) < 1e-3, "a tied head and cached prefixes are of the new weights too"
    assert gap(policy, asked(12), first, 0.8) > 0.01

    client = sampler.engine._client
    assert client is not None
    client._json("POST", "/pause?mode=wait")
    client._json("POST", "/start_weight_update")  # and the run is killed
    sampler.load(policy)
    assert [t.action_ids for t in take_turns(sampler, asked(12))] == [t.action_ids for t in second]
    both = of_two_ranks(policy, client.url, tmp_path)
    assert [t.action_ids for t in both] == [t.action_ids for t in (*second[::2], *second[1::2])]
    half_a_layer(policy, tmp_path / "broken")
    with pytest.raises(NoAnswer, match="/update_weights answered 500"):
        client.update(str(tmp_path / "broken"), "broken")
    sampler.load(policy)
    assert [t.action_ids for t in take_turns(sampler, asked(12))] == [t.action_ids for t in second]
    assert sampler.engine.life == 1

    kill(tmp_path)
    assert [t.action_ids for t in take_turns(sampler, asked(12))] == [t.action_ids for t in second]
    assert sampler.engine.life == 2
    assert sampler.counts["turns_asked_again"] >= 1
    group = str(os.getpgid(int(found("-f", str(tmp_path))[1])))
    assert len(found("-g", group)) > 1, "the engine's own processes, which have other names, are of the server's group"
    sampler.engine.close()
    assert not found("-f", str(tmp_path))
    assert eventually(lambda: not found("-g", group))
    assert sampler.engine.manifest_facts["engine"].startswith("vllm ")


def test_a_real_engine_samples_from_each_adapter_that_it_is_given(tmp_path: Path) -> None:
    policy = small_but_sure(tmp_path / "tokenizer")
    LoRA(r=4, alpha=8, trainable_tokens=False).apply(policy)
    adapters = {name: one for name, one in policy.model.named_parameters() if "lora_" in name}
    engine = VLLMEngine(512, dtype="float32", adapters=True, scratch=str(tmp_path))
    sampler = VLLMSampler(engine, policy, temperature=0.8)

    def sampled() -> list[Turn]:
        """Turns after prompts of at least two blocks of the prefix cache."""
        turns = take_turns(sampler, asked(4, length=70))
        assert gap(policy, asked(4, length=70), turns, 0.8) < 1e-3
        assert engine.gap < 1e-4
        return turns

    before = sampled()
    for number in range(2):
        with torch.no_grad():
            for name, one in adapters.items():
                noise = torch.randn(one.shape, generator=torch.Generator().manual_seed(number))
                one.copy_(noise * (0.3 if "lora_B" in name else 0.1))
        client = engine._client
        assert client is not None
        sampler.load(policy)
        read = cached_tokens(client)
        first = sampled()
        assert gap(policy, asked(4, length=70), before, 0.8) > 0.01, "the adapters differ"
        assert cached_tokens(client) == read, "nothing that the earlier adapter has read"
        assert [t.action_ids for t in sampled()] == [t.action_ids for t in first], "seeds, cached prefixes or not"
        assert cached_tokens(client) == read + 4 * 64, "two whole blocks of each prompt"
        before = first
    served = {one["id"] for one in client._json("GET", "/v1/models")["data"]} - {str(engine._handover.folder / "base")}
    assert served == {engine._handover.adapter}, "earlier ones are unloaded"
    folder = engine._handover.folder
    assert sorted(one.name for one in folder.iterdir() if one.is_dir()) == ["base", engine.version]

    client.sleep()  # a CPU gives back no memory, but pauses
    assert client._json("GET", "/is_sleeping") == {"is_sleeping": True}
    client.wake_up()
    assert [t.action_ids for t in sampled()] == [t.action_ids for t in before]
    engine.close()

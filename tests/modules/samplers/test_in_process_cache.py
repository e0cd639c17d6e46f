"""What the in-process sampler keeps between turns and shares between siblings changes no token."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from envs.requests import Request
from envs.sampling import take_turns
from modules.decoder.fused_decoder import FusedDecoder
from modules.samplers.in_process import InProcessSampler
from tests.modules.samplers.test_in_process import POLICY, STOP, TOKENIZER, episode, run_turns, training_logps
from tests.tiny import tiny_policy


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of prefixes are fed in each batch from now on."""
    fed: list[int] = []
    read = FusedDecoder.read

    def counting(self: FusedDecoder, first: int, new: Sequence[Sequence[int]], *rest: Any) -> torch.Tensor:
        fed.append(sum(map(len, new)))
        return read(self, first, new, *rest)

    monkeypatch.setattr(FusedDecoder, "read", counting)
    return fed


def test_the_kept_cache_equals_a_fresh_forward() -> None:
    kept, fresh = [episode(n) for n in range(9)], [episode(n) for n in range(9)]
    sampler = InProcessSampler(POLICY, temperature=1.0)
    run_turns(sampler, kept)
    for turn in range(3):
        one = InProcessSampler(POLICY, temperature=1.0)  # knows nothing of earlier turns
        requests = [
            Request(e, (5, 6), STOP, max_tokens=8 + 3 * turn, seed=1000 * int(e.question.id[1:]) + turn) for e in fresh
        ]
        for e, k, sampled in zip(fresh, kept, take_turns(one, requests), strict=True):
            assert sampled.action_ids == k.turns[turn].action_ids
            assert sampled.action_logps == pytest.approx(k.turns[turn].action_logps, abs=1e-4)
            e.turns.append(dataclasses.replace(sampled, observation_ids=k.turns[turn].observation_ids))


def test_a_later_turn_feeds_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = reads(monkeypatch)
    sampler, e = InProcessSampler(POLICY, temperature=1.0), episode(6)
    run_turns(sampler, [e], turns=1)
    assert fed[0] == len(e.prompt_ids) + 2
    fed.clear()
    run_turns(sampler, [e], turns=1)
    assert fed[0] == 1 + len(e.turns[0].observation_ids) + 2  # the last sampled token was not fed yet
    sampler.release([e])
    fed.clear()
    run_turns(sampler, [e], turns=1)
    assert fed[0] > len(e.prompt_ids)


def test_a_changed_context_is_never_answered_from_the_cache() -> None:
    sampler, e = InProcessSampler(POLICY, temperature=0.0), episode(3)
    run_turns(sampler, [e], turns=1)
    rendered = Request(e, (), STOP, context_ids=(9, 8, 7), max_tokens=6)
    [after], [fresh] = take_turns(sampler, [rendered]), take_turns(InProcessSampler(POLICY), [rendered])
    assert after.action_ids == fresh.action_ids
    assert after.context_ids == (9, 8, 7)


def test_new_weights_are_sampled_from_after_a_load() -> None:
    policy, e = tiny_policy(TOKENIZER, scale=3.0), episode(4)
    sampler = InProcessSampler(policy, temperature=1.0)
    run_turns(sampler, [e], turns=1)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(1.2)
    sampler.load(policy)
    updated = episode(4)
    run_turns(sampler, [updated], turns=1)
    stored, fresh = training_logps(policy, updated)
    assert stored == pytest.approx(fresh, abs=1e-4)
    old, _ = training_logps(policy, e)
    assert max(abs(a - b) for a, b in zip(stored, old, strict=False)) > 1e-2


def test_siblings_with_one_prefix_are_read_once_and_sample_what_they_would_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four samples each of two prompts."""

    def requests() -> list[Request]:
        prompts = [episode(number) for number in (1, 2)]
        return [
            Request(dataclasses.replace(prompt, sample=sample), (5, 6), STOP, max_tokens=9, seed=10 * number + sample)
            for number, prompt in enumerate(prompts)
            for sample in range(4)
        ]

    alone = [take_turns(InProcessSampler(POLICY, temperature=1.0), [request])[0] for request in requests()]
    read = reads(monkeypatch)
    together = take_turns(InProcessSampler(POLICY, temperature=1.0), requests())
    assert read == [(5 + 11 + 2) + (5 + 11 * 2 + 2)]  # each prompt and its opening once
    assert [turn.action_ids for turn in together] == [turn.action_ids for turn in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.action_logps == pytest.approx(other.action_logps, abs=1e-4)
    assert len({turn.action_ids for turn in together}) > 2


def test_prefixes_kept_and_new_share_a_batch_within_the_buffer() -> None:
    sampler, episodes = InProcessSampler(POLICY, temperature=1.0), [episode(n) for n in range(4)]
    run_turns(sampler, episodes[:2])  # the others come new into the next batch
    requests = [Request(e, (5,), STOP, max_tokens=20, seed=n) for n, e in enumerate(episodes)]
    together = take_turns(sampler, requests)
    for request, turn in zip(requests, together, strict=True):
        [alone] = take_turns(InProcessSampler(POLICY, temperature=1.0), [request])
        assert alone.action_ids == turn.action_ids
        assert alone.action_logps == pytest.approx(turn.action_logps, abs=1e-4)

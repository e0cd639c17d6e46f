"""Requests of every kind, and the buffer and the batches that the in-process sampler makes of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from common.errors import ConfigError
from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode
from modules.samplers.in_process import InProcessSampler
from modules.samplers.kv_cache import BatchCache
from tests.tiny import byte_tokenizer, question, tiny_policy

TOKENIZER = byte_tokenizer()
POLICY = tiny_policy(TOKENIZER, scale=3.0)


def lengths_and_limits() -> list[Request]:
    """A long prompt with a short limit among short prompts with long limits, each within 80 tokens."""
    sizes = [(70, 10), (8, 60), (5, 75), (30, 50), (12, 3), (64, 16)]
    return [
        Request(Episode(question(identity=f"q{n}"), tuple(range(1, size + 1))), (), (), max_tokens=limit, seed=n)
        for n, (size, limit) in enumerate(sizes)
    ]


def test_the_buffer_never_exceeds_the_longest_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, shifts = [], []
    made, shift = BatchCache.__init__, BatchCache.shift

    def watched(self: BatchCache, kept: Any, ends: Any, filled: int, columns: int) -> None:
        sizes.append(columns)
        made(self, kept, ends, filled, columns)

    def shifted(self: BatchCache, columns: int) -> None:
        shifts.append(columns)
        shift(self, columns)

    alone = [take_turns(InProcessSampler(POLICY, temperature=1.0), [request])[0] for request in lengths_and_limits()]
    monkeypatch.setattr(BatchCache, "__init__", watched)
    monkeypatch.setattr(BatchCache, "shift", shifted)
    together = take_turns(InProcessSampler(POLICY, temperature=1.0), lengths_and_limits())
    assert sizes == [80], "the longest prompt and the longest limit make 145 columns"
    assert shifts, "what remains of the batch moves to the front of the buffer"
    for one, other in zip(alone, together, strict=True):
        assert one.action_ids == other.action_ids
        assert one.action_logps == pytest.approx(other.action_logps, abs=1e-4)


def test_forced_ids_are_scored_and_not_sampled() -> None:
    free = lengths_and_limits()[1]
    [sampled] = take_turns(InProcessSampler(POLICY, temperature=0.7), [free])
    other = tuple(reversed(sampled.action_ids))
    requests = [dataclasses.replace(free, forced_ids=ids, seed=99) for ids in (sampled.action_ids, other)]
    same, changed = take_turns(InProcessSampler(POLICY, temperature=0.7), [*requests, lengths_and_limits()[2]])[:2]
    assert (same.action_ids, same.finish) == (sampled.action_ids, "stop")
    assert same.action_logps == pytest.approx(sampled.action_logps, abs=1e-4)
    assert changed.action_ids == other
    ids = torch.tensor([[*free.prefix(), *other]])
    logps = torch.log_softmax(POLICY.model(ids).logits[0, len(free.prefix()) - 1 : -1] / 0.7, dim=-1)
    assert changed.action_logps == pytest.approx(logps[range(len(other)), list(other)].tolist(), abs=1e-4)


def test_a_turn_whose_beginning_is_given_is_scored_there_and_sampled_from_then_on() -> None:
    free = lengths_and_limits()[1]
    [sampled] = take_turns(InProcessSampler(POLICY, temperature=0.7), [free])
    begun = dataclasses.replace(free, first_ids=sampled.action_ids[:2])
    [again] = take_turns(InProcessSampler(POLICY, temperature=0.7), [begun])
    assert again.action_ids == sampled.action_ids, "random numbers go by the token's place"
    assert again.action_logps == pytest.approx(sampled.action_logps, abs=1e-4)
    other = dataclasses.replace(free, first_ids=(40, 41, 42), max_tokens=5)
    [changed] = take_turns(InProcessSampler(POLICY, temperature=0.7), [other])
    assert (changed.action_ids[:3], len(changed.action_ids)) == ((40, 41, 42), 5)
    ids = torch.tensor([[*free.prefix(), *changed.action_ids]])
    logps = torch.log_softmax(POLICY.model(ids).logits[0, len(free.prefix()) - 1 : -1] / 0.7, dim=-1)
    expected = logps[range(5), list(changed.action_ids)].tolist()
    assert changed.action_logps == pytest.approx(expected, abs=1e-4)


def test_a_given_beginning_may_end_the_turn_and_cannot_be_cut() -> None:
    tokenizer, free = POLICY.tokenizer, lengths_and_limits()[1]
    stop = int(tokenizer.convert_tokens_to_ids("</answer>"))  # pyright: ignore[reportArgumentType]
    ends = dataclasses.replace(free, stop=("</answer>",), first_ids=(40, stop, 41, stop))
    longer = dataclasses.replace(free, first_ids=(40, 41, 42), max_tokens=2)
    ended, whole = take_turns(InProcessSampler(POLICY, temperature=0.7), [ends, longer])
    assert (ended.action_ids, ended.finish) == ((40, stop, 41, stop), "stop"), "it ends there, and no earlier"
    assert (whole.action_ids, whole.finish) == ((40, 41, 42), "length")


def test_the_longest_prefixes_are_sampled_first_and_come_back_in_the_order_of_submission() -> None:
    sampler, requests = InProcessSampler(POLICY, batch_size=2), lengths_and_limits()[::-1]
    sampler.submit(requests)
    order = []
    while done := sampler.collect():
        order.append([requests.index(request) for request, _ in done])
        assert all(turn.uid == request.episode.next_uid() for request, turn in done)
    assert order == [[0, 5], [1, 2], [3, 4]]


def test_a_turn_says_whether_it_trains() -> None:
    frozen = dataclasses.replace(lengths_and_limits()[4], trains=False, agent="generator")
    [turn] = take_turns(InProcessSampler(POLICY), [frozen])
    assert (turn.trainable, turn.agent) == (False, "generator")


def test_another_policy_is_sampled_from_once_it_is_loaded() -> None:
    request, other = lengths_and_limits()[1], tiny_policy(TOKENIZER, seed=5)
    sampler = InProcessSampler(temperature=1.0)
    with pytest.raises(ConfigError, match="no policy"):
        sampler.check(None, None)  # type: ignore[arg-type]
    turns = []
    for policy in (POLICY, other, POLICY):
        sampler.load(policy)
        turns += take_turns(sampler, [request])
    assert turns[0].action_ids == turns[2].action_ids != turns[1].action_ids

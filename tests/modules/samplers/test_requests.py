"""Requests of every kind, and the buffer and the batches that the in-process sampler makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from common.errors import ConfigError, DataError
from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode, Turn
from modules.decoder.kv_cache import Rows
from modules.samplers.in_process import InProcessSampler
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
    columns, reserve = [], Rows.reserve

    def reserved(self: Rows, slots: int, count: int, lengths: Sequence[int]) -> None:
        reserve(self, slots, count, lengths)
        columns.append(self.buffers[0].shape[1::2])

    alone = [take_turns(InProcessSampler(POLICY, temperature=1.0), [request])[0] for request in lengths_and_limits()]
    monkeypatch.setattr(Rows, "reserve", reserved)
    together = take_turns(InProcessSampler(POLICY, temperature=1.0), lengths_and_limits())
    assert set(columns) == {(6, 79)}, "80 tokens, the last of which is never fed"
    for one, other in zip(alone, together, strict=True):
        assert one.action_ids == other.action_ids
        assert one.action_logps == pytest.approx(other.action_logps, abs=1e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_room_is_made_as_turns_need_it_and_changes_no_token(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most turns are far shorter than their limit, for which room would be made in every row."""
    columns, reserve = [], Rows.reserve

    def reserved(self: Rows, slots: int, count: int, lengths: Sequence[int]) -> None:
        reserve(self, slots, count, lengths)
        columns.append(self.buffers[0].shape[3])

    monkeypatch.setattr("modules.samplers.decoding.can_fuse", lambda model: fused)
    at_once = take_turns(InProcessSampler(POLICY, temperature=1.0), lengths_and_limits())
    monkeypatch.setattr(Rows, "reserve", reserved)
    monkeypatch.setattr("modules.samplers.decoding._AHEAD", 3)
    monkeypatch.setattr("modules.decoder.kv_cache._AT_ONCE", 2)
    by_need = take_turns(InProcessSampler(POLICY, temperature=1.0), lengths_and_limits())
    assert [turn.action_ids for turn in by_need] == [turn.action_ids for turn in at_once]
    assert columns[0] == 70 + 3 - 1
    assert columns == sorted(columns)
    sizes = [len(one.prefix()) + len(turn.action_ids) for one, turn in zip(lengths_and_limits(), by_need, strict=True)]
    assert columns[-1] <= max(*sizes, columns[0]) + 2


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


def test_the_longest_prefixes_are_sampled_first_and_what_finished_is_replaced() -> None:
    sampler, requests = InProcessSampler(POLICY, temperature=1.0, batch_size=2), lengths_and_limits()
    sampler.submit(requests)
    seen, order = [], []
    while done := sampler.collect():
        order += [requests.index(request) for request, _ in done]
        assert sampler._decoding is not None
        seen.append([requests.index(turn.request) for turn in sampler._decoding.live])
        assert all(turn.uid == request.episode.next_uid() for request, turn in done)
    assert sorted(order) == list(range(6))
    assert (order[0], seen[0]) == (0, [5, 3]), "the row of 70 tokens ends first, and that of 30 takes its place"
    assert [len(live) for live in seen] == [2, 2, 2, 2, 1, 0]


def test_a_row_that_joins_others_under_way_samples_what_it_would_alone() -> None:
    sampler, requests = InProcessSampler(POLICY, temperature=1.0, batch_size=8), lengths_and_limits()
    sampler.submit(requests[:3])
    done = sampler.collect()
    sampler.submit(requests[3:])
    while len(done) < len(requests):
        done += sampler.collect()
    for request, turn in done:
        [alone] = take_turns(InProcessSampler(POLICY, temperature=1.0), [request])
        assert turn.action_ids == alone.action_ids
        assert turn.action_logps == pytest.approx(alone.action_logps, abs=1e-4)


def test_episodes_that_are_given_up_leave_the_others_as_they_are() -> None:
    sampler, requests = InProcessSampler(POLICY, temperature=1.0), lengths_and_limits()
    sampler.submit(requests)
    done = sampler.collect()
    gone = [request for request in requests if request not in [one for one, _ in done]][::2]
    sampler.release([request.episode for request in gone])
    while finished := sampler.collect():
        done += finished
    assert len(done) == len(requests) - len(gone)
    for request, turn in done:
        [alone] = take_turns(InProcessSampler(POLICY, temperature=1.0), [request])
        assert turn.action_ids == alone.action_ids


def test_a_turn_under_way_begins_again_with_the_weights_that_are_loaded() -> None:
    other, requests = tiny_policy(TOKENIZER, seed=5), lengths_and_limits()
    sampler = InProcessSampler(POLICY, temperature=1.0)
    sampler.submit(requests)
    done = {request.seed: turn for request, turn in sampler.collect()}
    first = set(done)
    sampler.load(other)
    while finished := sampler.collect():
        done |= {request.seed: turn for request, turn in finished}
    for request in requests:
        policy = POLICY if request.seed in first else other
        [alone] = take_turns(InProcessSampler(policy, temperature=1.0), [request])
        assert done[request.seed].action_ids == alone.action_ids


def test_every_request_may_have_its_own_temperature_and_top_p() -> None:
    def answers(sampler: InProcessSampler, **own: float) -> list[Turn]:
        return take_turns(sampler, [dataclasses.replace(request, **own) for request in lengths_and_limits()])

    shared = InProcessSampler(POLICY, temperature=1.0)
    hot, cold = answers(shared), answers(shared, temperature=0.4, top_p=0.9)
    assert [t.action_ids for t in hot] == [t.action_ids for t in answers(InProcessSampler(POLICY, temperature=1.0))]
    apart = answers(InProcessSampler(POLICY, temperature=0.4, top_p=0.9))
    assert [t.action_ids for t in cold] == [t.action_ids for t in apart] != [t.action_ids for t in hot]
    for one, other in zip(cold, apart, strict=True):
        assert one.action_logps == pytest.approx(other.action_logps, abs=1e-4)


def test_a_turn_says_whether_it_trains() -> None:
    frozen = dataclasses.replace(lengths_and_limits()[4], trains=False, agent="generator")
    [turn] = take_turns(InProcessSampler(POLICY), [frozen])
    assert (turn.trainable, turn.agent) == (False, "generator")


def test_another_policy_is_sampled_from_once_it_is_loaded() -> None:
    request, other = lengths_and_limits()[1], tiny_policy(TOKENIZER, seed=5)
    sampler = InProcessSampler(temperature=1.0)
    with pytest.raises(ConfigError, match="no policy"):
        InProcessSampler().collect()
    with pytest.raises(ConfigError, match="no policy"):
        sampler.check(None, None)  # type: ignore[arg-type]
    turns = []
    for policy in (POLICY, other, POLICY):
        sampler.load(policy)
        turns += take_turns(sampler, [request])
    assert turns[0].action_ids == turns[2].action_ids != turns[1].action_ids


@pytest.mark.parametrize("greedy", [False, True])
def test_weights_that_are_not_numbers_end_the_run(greedy: bool) -> None:
    """Else a token would be sampled, and an episode written, with a log-prob of NaN."""
    policy = tiny_policy(byte_tokenizer())
    with torch.no_grad():
        next(policy.model.parameters()).fill_(float("nan"))
    request = dataclasses.replace(lengths_and_limits()[0], greedy=greedy)
    with pytest.raises(DataError, match="log-probs that are not numbers"):
        take_turns(InProcessSampler(policy, temperature=1.0), [request])

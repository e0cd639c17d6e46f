"""The buffer of keys and values grows seldom, keeps what live rows hold, and never exceeds the longest sequence."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor

from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode, Limits, Question
from modules.decoder.kv_cache import Rows
from modules.samplers.in_process import InProcessSampler
from tests.toy_rl import environment, small_policy


def rows(limit: int) -> Rows:
    made = Rows(2, (2, 8), torch.empty(0))
    made.limit = limit
    return made


def test_columns_grow_by_half_up_to_the_limit() -> None:
    held, columns = rows(200), []
    for needed in (100, 101, 140, 151, 190, 200, 210):
        held.reserve(2, needed, ())
        columns.append(held.buffers[-1].shape[3])
    assert columns == [100, 150, 150, 200, 200, 200, 210]
    held.reserve(3, 1, ())
    assert held.buffers[0].shape[1::2] == (3, 210)
    long = rows(9000)
    long.reserve(1, 4000, ())
    long.reserve(1, 4001, (7,))
    assert long.buffers[0].shape[3] == 4512


def test_live_rows_are_kept_and_the_rest_is_empty() -> None:
    held = rows(200)
    held.reserve(3, 10, ())
    for number, buffer in enumerate(held.buffers):
        buffer += torch.arange(buffer.numel()).reshape(buffer.shape) + number
    before = [buffer.clone() for buffer in held.buffers]
    held.reserve(4, 12, (5, 8))
    for buffer, old in zip(held.buffers, before, strict=True):
        assert torch.equal(buffer[:, :2, :, :8], old[:, :2, :, :8])
        assert not buffer[:, 2:].any()
        assert not buffer[:, :, :, 8:].any()


def test_the_old_buffer_of_a_layer_is_gone_before_the_next_layer_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    held, there, new_zeros = rows(200), [], Tensor.new_zeros
    held.reserve(2, 10, ())
    old = [weakref.ref(buffer) for buffer in held.buffers]

    def watched(self: Tensor, shape: tuple[int, ...]) -> Tensor:
        there.append(sum(buffer() is not None for buffer in old))
        return new_zeros(self, shape)

    monkeypatch.setattr(Tensor, "new_zeros", watched)
    held.reserve(2, 11, (4,))
    assert there == [2, 1]


def test_a_growing_context_moves_the_rows_a_few_times_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, columns, reserve = small_policy(), set[int](), Rows.reserve

    def reserved(self: Rows, slots: int, count: int, lengths: list[int]) -> None:
        reserve(self, slots, count, lengths)
        columns.add(self.buffers[0].shape[3])

    monkeypatch.setattr(Rows, "reserve", reserved)
    sampler, one = InProcessSampler(policy, temperature=1.0), Episode(Question("q", "?", ("a",)), (0, 1, 2, 3) * 5)
    sampler.check(environment(policy).protocol, Limits(total_tokens=100))
    while len(one.context()) < 95:
        [turn] = take_turns(sampler, [Request(one, (), (), max_tokens=4, seed=len(one.turns))])
        one.turns.append(turn)
    assert len(one.turns) > 15
    assert sorted(columns) == [23, 34, 51, 76, 99]

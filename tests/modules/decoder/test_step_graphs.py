"""Recorded steps: their shapes, and that they answer as steps that are not recorded."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch

from modules.decoder.fused_decoder import FusedDecoder
from modules.decoder.step_graphs import Compute, StepGraphs, padded_rows, padded_width
from modules.samplers.in_process import InProcessSampler
from tests.modules.samplers.test_in_process import POLICY, episode, run_turns


class Recorder:
    """Does what recording on a GPU does: computes once, then anew at every call. Counts recordings.

    It refuses, as CUDA's graphs do, to record into memory whose recordings are gone.
    """

    def __init__(self) -> None:
        self.recordings = 0
        self.forget()

    def forget(self) -> None:
        self._made, self._held = 0, weakref.WeakSet[Compute]()

    def __call__(self, compute: Compute) -> Compute:
        assert self._held or not self._made, "all recordings of this memory are gone"
        self.recordings += 1
        self._made += 1
        compute()
        self._held.add(compute)
        return compute


def begun(lengths: list[int], slots: int = 0) -> FusedDecoder:
    """A decoder whose rows hold so many tokens each."""
    decoder = FusedDecoder(POLICY.model)
    decoder.rows.reserve(max(slots, len(lengths)), 300, ())
    new = [[7 * row + column for column in range(n)] for row, n in enumerate(lengths)]
    decoder.read(0, new, [0] * len(lengths))
    return decoder


def test_shapes_are_rounded_up() -> None:
    assert [padded_rows(count) for count in (1, 2, 3, 5, 8, 9, 33, 64, 65)] == [1, 2, 4, 8, 8, 16, 64, 64, 128]
    assert [padded_width(columns, 700) for columns in (1, 256, 257, 513, 701)] == [256, 256, 512, 700, 701]


@torch.inference_mode()
def test_a_recorded_step_answers_as_one_that_is_not() -> None:
    lengths, record = [4, 9, 6], Recorder()
    plain, recorded = begun(lengths), begun(lengths)
    graphs = StepGraphs(record, recorded.rows)
    for step in range(4):
        now = [n + step for n in lengths]
        if step == 3:
            recorded.rows.reserve(4, 600, now)  # the rows move: what was recorded wrote where they had been
        ids, places = torch.tensor([11, 12 + step, 13]), torch.tensor(now)
        expected = plain.step(ids, places, now)
        logits = graphs(recorded.fixed_step, ids, places, now)
        assert torch.allclose(logits, expected, atol=1e-5)
        assert record.recordings == (1 if step < 3 else 2)
    for one, other in zip(recorded.rows.buffers, plain.rows.buffers, strict=True):
        assert torch.allclose(one[:, :3, :, :8], other[:, :3, :, :8], atol=1e-5)


@pytest.mark.gpu
@torch.inference_mode()
def test_cuda_graphs_answer_as_steps_that_are_not_recorded() -> None:
    """Also after the rows have moved while the last logits were in use, twice."""
    plain, lengths = begun([4, 9, 6]), [4, 9, 6]
    decoder = FusedDecoder(copy.deepcopy(POLICY.model).to("cuda"))
    decoder.rows.reserve(3, 300, ())
    decoder.read(0, [[7 * row + column for column in range(n)] for row, n in enumerate(lengths)], [0] * 3)
    for step in range(12):
        now = [n + step for n in lengths]
        if step in (4, 8):
            decoder.rows.reserve(4, 300 * step, now)
        ids, places = torch.tensor([11, 12 + step, 13]), torch.tensor(now)
        logits = decoder.step(ids.cuda(), places.cuda(), now)
        assert torch.allclose(logits.cpu(), plain.step(ids, places, now), atol=1e-4)


def test_rows_have_room_for_recorded_steps_from_the_start() -> None:
    """Else the first steps move them, and all that is recorded is lost."""
    plain, recorded = FusedDecoder(POLICY.model), FusedDecoder(POLICY.model)
    recorded.graphs = StepGraphs(Recorder(), recorded.rows)
    for decoder in (plain, recorded):
        decoder.reserve(5, 200, ())
    assert plain.rows.buffers[0].shape[1::2] == (5, 200)
    assert recorded.rows.buffers[0].shape[1::2] == (8, 256)


@torch.inference_mode()
def test_rows_that_fill_a_shape_are_never_read() -> None:
    lengths = [5, 3, 8]
    decoder = begun(lengths, slots=4)
    expected = decoder.step(torch.tensor([1, 2, 3]), torch.tensor(lengths), lengths)
    for buffer in decoder.rows.buffers:
        buffer[:, 3] = float("nan")
    graphs = StepGraphs(Recorder(), decoder.rows)
    logits = graphs(decoder.fixed_step, torch.tensor([1, 2, 3]), torch.tensor(lengths), lengths)
    assert torch.allclose(logits, expected, atol=1e-5)


def test_recorded_steps_sample_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin, on a CPU, of sampling on a GPU."""
    plain = [episode(n) for n in range(12)]
    run_turns(InProcessSampler(POLICY, temperature=1.0, batch_size=5), plain)
    begin, record = FusedDecoder.__init__, Recorder()

    def with_graphs(self: FusedDecoder, *model: object) -> None:
        begin(self, *model)  # pyright: ignore
        self.graphs = StepGraphs(record, self.rows)

    monkeypatch.setattr(FusedDecoder, "__init__", with_graphs)
    recorded = [episode(n) for n in range(12)]
    run_turns(InProcessSampler(POLICY, temperature=1.0, batch_size=5), recorded)
    assert record.recordings > 1
    for a, b in zip(plain, recorded, strict=True):
        for one, other in zip(a.turns, b.turns, strict=True):
            assert one.action_ids == other.action_ids
            assert one.action_logps == pytest.approx(other.action_logps, abs=1e-4)

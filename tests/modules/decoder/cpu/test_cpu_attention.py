"""What a compiled step reads: the row's own columns, with a float32 softmax, whoever its neighbours are."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
import torch
from torch import Tensor

from modules.decoder.cpu.cpu_attention import cpu_stepping, fits
from modules.decoder.cpu.elementwise import placed, share_threads
from modules.decoder.kv_cache import Rows

LENGTHS = [0, 3, 14, 15, 16, 31, 40, 99]  # of a block of sixteen columns and of several, whole and not


@pytest.fixture(autouse=True, scope="module")
def threads() -> None:
    """As the decoder does before it computes."""
    share_threads()


def filled(kv_heads: int, head_dim: int, dtype: torch.dtype, slots: int = len(LENGTHS)) -> Rows:
    """Slots of 100 columns, full of random numbers, in a cache of two layers."""
    rows = Rows(2, (kv_heads, head_dim), torch.empty(0, dtype=dtype))
    rows.reserve(slots, 100, ())
    rows.buffer.copy_(torch.randn(rows.buffer.shape, generator=torch.Generator().manual_seed(0)))
    return rows


def stepped(rows: Rows, lengths: list[int], queries: Tensor) -> Tensor:
    """What unturned queries `[B, heads, head_dim]` read of layer 1, whose new keys and values are there already."""
    slots, columns = torch.arange(len(lengths)), torch.tensor(lengths)
    keys, values = (states[slots, :, columns] for states in rows.layer(1))
    unturned = torch.ones(len(lengths), queries.shape[-1]), torch.zeros(len(lengths), queries.shape[-1])
    return cpu_stepping(rows, columns, unturned, 1e-6)(1, torch.cat([queries, keys, values], dim=1), None)


def by_hand(rows: Rows, lengths: list[int], queries: Tensor) -> Tensor:
    """Attention of one token a row in float64, `[B, heads * head_dim]`."""
    keys, values = (states.double() for states in rows.layer(1))
    group = queries.shape[1] // keys.shape[1]
    read = []
    for slot, (length, heads) in enumerate(zip(lengths, queries.double(), strict=True)):
        for head, query in enumerate(heads):
            scores = keys[slot, head // group, : length + 1] @ query / math.sqrt(len(query))
            read.append(scores.softmax(0) @ values[slot, head // group, : length + 1])
    return torch.stack(read).view(len(lengths), -1)


def test_two_columns_by_hand() -> None:
    rows = filled(1, 16, torch.float32, slots=1)
    keys, values = rows.layer(1)
    keys[0, 0, :2], values[0, 0, :2] = 0, 0
    keys[0, 0, 1, 0], values[0, 0, 0, 3], values[0, 0, 1, 5] = 4.0, 8.0, 16.0
    query = torch.zeros(1, 1, 16)
    query[0, 0, 0] = math.log(3)  # times 4 / sqrt(16): the second column weighs three times as much
    read = stepped(rows, [1], query)
    assert read[0].tolist() == pytest.approx([0, 0, 0, 2, 0, 12] + 10 * [0])


@pytest.mark.parametrize(("kv_heads", "group", "head_dim"), [(2, 2, 32), (3, 3, 64), (1, 8, 16), (2, 1, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_is_read_as_far_as_it_goes(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype) -> None:
    rows = filled(kv_heads, head_dim, dtype)
    queries = torch.randn(len(LENGTHS), kv_heads * group, head_dim, generator=torch.Generator().manual_seed(1))
    expected = by_hand(rows, LENGTHS, queries.to(dtype))
    for slot, length in enumerate(LENGTHS):
        rows.buffer[:, slot, :, length + 1 :] = float("nan")
    read = stepped(rows, LENGTHS, queries.to(dtype))
    assert read.dtype == dtype
    assert torch.allclose(read.double(), expected, atol=2e-6 if dtype == torch.float32 else 2**-8)


def test_scores_that_are_far_apart_leave_the_greatest() -> None:
    rows = filled(1, 16, torch.float32, slots=1)
    keys, values = rows.layer(1)
    keys[0, 0, :20] *= 1000
    query = torch.ones(1, 1, 16)
    best = int(keys[0, 0, :20].sum(-1).argmax())
    assert torch.allclose(stepped(rows, [19], query)[0], values[0, 0, best])


def test_nan_stays_nan() -> None:
    rows = filled(1, 16, torch.float32, slots=2)
    rows.layer(1)[0][1, 0, 7, 3] = float("nan")
    read = stepped(rows, [20, 20], torch.ones(2, 1, 16))
    assert read.isnan().tolist() == [16 * [False], 16 * [True]]


def test_neighbours_and_threads_change_no_bit() -> None:
    rows, queries = filled(2, 32, torch.float32), torch.randn(len(LENGTHS), 4, 32)
    together = stepped(rows, LENGTHS, queries)
    threads = numba.get_num_threads()
    try:
        for count in range(1, numba.config.NUMBA_NUM_THREADS + 1):  # type: ignore[attr-defined]
            numba.set_num_threads(count)
            assert torch.equal(stepped(rows, LENGTHS[:1], queries[:1]), together[:1])
            assert torch.equal(stepped(rows, LENGTHS[:5], queries[:5]), together[:5])
    finally:
        numba.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [True, False])
def test_new_keys_and_values_are_kept_in_their_column_and_read(dtype: torch.dtype, normed: bool) -> None:
    rows, before = filled(2, 32, dtype), filled(2, 32, dtype)
    random = torch.Generator().manual_seed(2)
    qkv = torch.randn(len(LENGTHS), 8, 32, generator=random).to(dtype)
    norms = torch.rand(6, 32, generator=random).to(dtype) if normed else None
    angles = torch.rand(len(LENGTHS), 16, generator=random).repeat(1, 2)
    lengths, rotation = torch.tensor(LENGTHS), (angles.cos(), angles.sin())
    read = cpu_stepping(rows, lengths, rotation, 1e-3)(1, qkv, norms)
    exact = placed(qkv[:, :6].float(), None if norms is None else norms.float(), *rotation, 1e-3).double()
    slots = torch.arange(len(LENGTHS))
    keys, values = (states[slots, :, lengths] for states in rows.layer(1))
    near = 1e-6 if dtype == torch.float32 else 2**-7
    assert torch.allclose(keys.double(), exact[:, 4:], atol=near)
    assert torch.equal(values, qkv[:, 6:])
    assert torch.allclose(read.double(), by_hand(rows, LENGTHS, exact[:, :4]), atol=near)
    for states in (*before.layer(1), *rows.layer(1)):
        states[slots, :, lengths] = 0
    assert torch.equal(rows.buffer, before.buffer), "nothing else is written"


def test_values_are_rounded_as_pytorch_rounds_to_bfloat16() -> None:
    """Ties to even, and what is next to the greatest number overflows."""
    numbers = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1.003, 1e-40, -0.0, 3.4e38, float("inf")]).repeat(4)
    rows, one = filled(1, 32, torch.bfloat16, slots=1), torch.ones(1, 32)
    qkv = torch.stack([numbers, numbers, numbers])[None]
    cpu_stepping(rows, torch.tensor([4]), (one, 0 * one), 1e-6)(0, qkv, None)
    kept, expected = rows.layer(0)[1][0, 0, 4], numbers.to(torch.bfloat16)
    assert torch.equal(kept.view(torch.int16), expected.view(torch.int16))


def test_what_fits() -> None:
    assert fits(filled(2, 32, torch.float32), 4)
    assert not fits(filled(2, 24, torch.float32), 4), "half a register"
    assert not fits(filled(1, 32, torch.float32), 9), "more sums than registers"
    assert not fits(filled(2, 32, torch.float16), 4)


_FINGERPRINT = """
import hashlib, torch
from tests.modules.decoder.cpu.test_cpu_attention import LENGTHS, filled
from modules.decoder.cpu.cpu_attention import cpu_stepping
from modules.decoder.cpu.elementwise import gated, normed, placed
random = torch.Generator().manual_seed(1)
qkv, norms = torch.randn(len(LENGTHS), 8, 32, generator=random), torch.rand(6, 32, generator=random)
angles = torch.rand(len(LENGTHS), 32, generator=random)
rotation, rows = (angles.cos(), angles.sin()), filled(2, 32, torch.float32)
read = cpu_stepping(rows, torch.tensor(LENGTHS), rotation, 1e-6)(1, qkv, norms)
others = [placed(qkv[:, :6], norms, *rotation, 1e-6), normed(read, norms.flatten()[:128], 1e-6), gated(read)]
for tensor in (read, rows.buffer, *others):
    print(hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
"""


def test_what_is_compiled_and_what_is_loaded_from_the_cache_give_the_same_bits(tmp_path: Path) -> None:
    """Numba optimises the two differently, so a freedom left to it would show here, and in runs that go on."""
    root = Path(__file__).parents[4]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    said = []
    for _ in range(2):
        command = [sys.executable, "-c", _FINGERPRINT]
        said.append(subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True))
        assert list(tmp_path.rglob("*.nbc")), "the first process fills the cache"
    assert said[0].stdout == said[1].stdout

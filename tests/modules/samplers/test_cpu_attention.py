"""What a compiled step reads: the row's own columns, with a float32 softmax, whoever its neighbours are."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config

from modules.samplers import cpu_attention
from modules.samplers.cpu_attention import cpu_stepping, fits
from modules.samplers.kv_cache import Rows

LENGTHS = [0, 3, 14, 15, 16, 31, 40, 99]  # of a block of sixteen columns and of several, whole and not


def filled(kv_heads: int, head_dim: int, dtype: torch.dtype, slots: int = len(LENGTHS)) -> Rows:
    """Slots of 100 columns, full of random numbers, in a cache of two layers."""
    config = Qwen3Config(num_hidden_layers=2, num_key_value_heads=kv_heads, head_dim=head_dim)
    rows = Rows(config, torch.empty(0, dtype=dtype))
    rows.reserve(slots, 100, ())
    rows.buffer.copy_(torch.randn(rows.buffer.shape, generator=torch.Generator().manual_seed(0)))
    return rows


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
    read = cpu_stepping(rows, torch.tensor([1]))(1, query)
    assert read[0].tolist() == pytest.approx([0, 0, 0, 2, 0, 12] + 10 * [0])


@pytest.mark.parametrize(("kv_heads", "group", "head_dim"), [(2, 2, 32), (3, 3, 64), (1, 8, 16), (2, 1, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_is_read_as_far_as_it_goes(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype) -> None:
    rows = filled(kv_heads, head_dim, dtype)
    queries = torch.randn(len(LENGTHS), kv_heads * group, head_dim, generator=torch.Generator().manual_seed(1))
    expected = by_hand(rows, LENGTHS, queries.to(dtype))
    for slot, length in enumerate(LENGTHS):
        rows.buffer[:, slot, :, length + 1 :] = float("nan")
    read = cpu_stepping(rows, torch.tensor(LENGTHS))(1, queries.to(dtype))
    assert read.dtype == dtype
    assert torch.allclose(read.double(), expected, atol=2e-6 if dtype == torch.float32 else 2**-8)


def test_scores_that_are_far_apart_leave_the_greatest() -> None:
    rows = filled(1, 16, torch.float32, slots=1)
    keys, values = rows.layer(1)
    keys[0, 0, :20] *= 1000
    query = torch.ones(1, 1, 16)
    best = int(keys[0, 0, :20].sum(-1).argmax())
    assert torch.allclose(cpu_stepping(rows, torch.tensor([19]))(1, query)[0], values[0, 0, best])


def test_nan_stays_nan() -> None:
    rows = filled(1, 16, torch.float32, slots=2)
    rows.layer(1)[0][1, 0, 7, 3] = float("nan")
    read = cpu_stepping(rows, torch.tensor([20, 20]))(1, torch.ones(2, 1, 16))
    assert read.isnan().tolist() == [16 * [False], 16 * [True]]


def test_neighbours_and_threads_change_no_bit() -> None:
    rows, queries = filled(2, 32, torch.float32), torch.randn(len(LENGTHS), 4, 32)
    together = cpu_stepping(rows, torch.tensor(LENGTHS))(1, queries)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = cpu_stepping(rows, torch.tensor(LENGTHS[:1]))(1, queries[:1])
        some = cpu_stepping(rows, torch.tensor(LENGTHS[:5]))(1, queries[:5])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone, together[:1])
    assert torch.equal(some, together[:5])


def test_starting_numba_leaves_the_threads_of_pytorch_alone() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cpu_attention._started_threads.cache_clear()
        assert cpu_attention._started_threads() >= 1
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)


def test_what_fits() -> None:
    assert fits(filled(2, 32, torch.float32), 4)
    assert not fits(filled(2, 24, torch.float32), 4), "half a register"
    assert not fits(filled(1, 32, torch.float32), 9), "more sums than registers"
    assert not fits(filled(2, 32, torch.float16), 4)


_FINGERPRINT = """
import hashlib, torch
from tests.modules.samplers.test_cpu_attention import LENGTHS, filled
from modules.samplers.cpu_attention import cpu_stepping
queries = torch.randn(len(LENGTHS), 4, 32, generator=torch.Generator().manual_seed(1))
read = cpu_stepping(filled(2, 32, torch.float32), torch.tensor(LENGTHS))(1, queries)
print(hashlib.sha256(read.numpy().tobytes()).hexdigest())
"""


def test_what_is_compiled_and_what_is_loaded_from_the_cache_give_the_same_bits(tmp_path: Path) -> None:
    """Numba optimises the two differently, so a freedom left to it would show here, and in runs that go on."""
    root = Path(__file__).parents[3]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    said = []
    for _ in range(2):
        command = [sys.executable, "-c", _FINGERPRINT]
        said.append(subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True))
        assert list(tmp_path.rglob("*.nbc")), "the first process fills the cache"
    assert said[0].stdout == said[1].stdout

"""What queries read of the rows: their own keys and values, up to their own column."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from modules.decoder.kv_cache import Rows
from modules.decoder.row_attention import reading, stepping, up_to, whole

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def filled() -> Rows:
    """Five slots of twelve columns, full of random numbers, in a cache of two layers."""
    rows = Rows(2, (KV_HEADS, HEAD_DIM), torch.empty(0))
    rows.reserve(5, 12, ())
    generator = torch.Generator().manual_seed(0)
    for buffer in rows.buffers:
        buffer.normal_(generator=generator)
    return rows


def new(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of new tokens."""
    random = torch.Generator().manual_seed(5)
    keys, values = torch.randn(2, tokens, KV_HEADS, HEAD_DIM, generator=random)
    return keys, values


def by_hand(rows: Rows, layer: int, slot: int, column: int, query_HD: Tensor) -> Tensor:
    """Attention of one token over the columns up to its own."""
    keys, values = (states[slot, :, : column + 1] for states in rows.layer(layer))
    read = []
    for head, query in enumerate(query_HD):
        group = head * KV_HEADS // HEADS
        weights = torch.softmax(keys[group] @ query / HEAD_DIM**0.5, dim=0)
        read.append(weights @ values[group])
    return torch.cat(read)


def test_columns_behind_the_own_are_hidden() -> None:
    never = float("-inf")
    assert up_to(torch.tensor([0, 2]), 3, torch.float32).tolist() == [[0, never, never], [0, 0, 0]]


def test_a_step_reads_each_row_as_far_as_it_goes() -> None:
    rows, lengths = filled(), [3, 11, 0, 7, 5]
    queries = torch.randn(5, HEADS, HEAD_DIM)
    keys, values = new(5)
    read = stepping(rows, torch.tensor(lengths), 12)(1, queries, keys, values)
    kept = rows.layer(1)
    assert torch.equal(kept[0][range(5), :, lengths], keys)
    assert torch.equal(kept[1][range(5), :, lengths], values)
    for slot, length in enumerate(lengths):
        assert torch.allclose(read[slot], by_hand(rows, 1, slot, length, queries[slot]), atol=1e-6)


def test_a_piece_reads_its_own_row_up_to_each_token() -> None:
    rows, pieces = filled(), [(4, 0, 3), (1, 5, 9), (2, 11, 12)]
    queries = torch.randn(8, HEADS, HEAD_DIM)
    keys, values = new(8)
    read = reading(rows, pieces, torch.float32)(0, queries, keys, values)
    places = [(slot, column) for slot, start, end in pieces for column in range(start, end)]
    for token, (slot, column) in enumerate(places):
        assert torch.allclose(read[token], by_hand(rows, 0, slot, column, queries[token]), atol=1e-6)
        assert torch.equal(rows.layer(0)[0][slot, :, column], keys[token])
        assert torch.equal(rows.layer(0)[1][slot, :, column], values[token])


def test_whole_sequences_read_what_a_piece_from_the_beginning_reads() -> None:
    rows, queries = filled(), torch.randn(7, HEADS, HEAD_DIM)
    keys, values = new(7)
    kept = reading(rows, [(3, 0, 5), (0, 0, 2)], torch.float32)(1, queries, keys, values)
    assert torch.allclose(whole([5, 2], torch.float32)(1, queries, keys, values), kept, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("columns", [33, 65, 97, 128])
def test_pieces_of_a_bfloat16_row_are_read_as_in_float64(device: str, head_dim: int, columns: int) -> None:
    """Lengths and layouts at which kernels of a GPU have been wrong: keys that a group shares, and a mask."""
    rows = Rows(1, (2, head_dim), torch.empty(0, dtype=torch.bfloat16, device=device))
    rows.reserve(1, columns, ())
    rows.buffers[0].normal_()
    first, count = columns - 9, 9
    queries = torch.randn(count, 4, head_dim, device=device).bfloat16()
    keys, values = torch.randn(2, count, 2, head_dim, device=device).bfloat16()
    read = reading(rows, [(0, first, columns)], torch.bfloat16)(0, queries, keys, values)
    kept_keys, kept_values = (states[0, :, :columns].double() for states in rows.layer(0))
    for token in range(count):
        exact = []
        for head, query in enumerate(queries[token].double()):
            seen = first + token + 1
            weights = (kept_keys[head // 2, :seen] @ query / head_dim**0.5).softmax(0)
            exact.append(weights @ kept_values[head // 2, :seen])
        assert torch.allclose(read[token].double(), torch.cat(exact), atol=0.03)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("width", [40, 257])
def test_a_step_of_bfloat16_rows_of_unequal_length_reads_as_in_float64(device: str, width: int) -> None:
    """At the heads of Qwen3-8B: four queries share a key of 128 numbers, and a mask hides what lies behind a row."""
    rows = Rows(1, (8, 128), torch.empty(0, dtype=torch.bfloat16, device=device))
    rows.reserve(6, width + 7, ())
    rows.buffers[0].normal_(generator=torch.Generator(device).manual_seed(0))
    lengths = [width - 1, 0, 5, width // 2, 31]
    queries = torch.randn(5, 32, 128, device=device).bfloat16()
    keys, values = torch.randn(2, 5, 8, 128, device=device).bfloat16()
    read = stepping(rows, torch.tensor(lengths, device=device), width)(0, queries, keys, values)
    kept_keys, kept_values = (states.double() for states in rows.layer(0))
    for row, length in enumerate(lengths):
        assert kept_keys[row, :, length].equal(keys[row].double()), "the new one is written"
        scores = torch.einsum(
            "hqd,htd->hqt", queries[row].double().unflatten(0, (8, 4)), kept_keys[row, :, : length + 1]
        )
        exact = torch.einsum("hqt,htd->hqd", (scores / 128**0.5).softmax(-1), kept_values[row, :, : length + 1])
        assert torch.allclose(read[row].double(), exact.flatten(), atol=0.03)

"""KV cache of the rows that are being sampled, a buffer a layer: each row from column 0 to its own length.

A row is written at its own end, so rows of any length share a forward pass, and one that has finished can be replaced
while the others continue. Nothing lies before a row's first token: no column is spent on padding at the left.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

_AT_ONCE = 512  # columns that are added at most beyond what is needed


def kv_shape(config: PretrainedConfig) -> tuple[int, int]:
    """Heads of keys, and of values, and their size, of a Llama-like model."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class RowLayer(DynamicLayer):
    """One layer of some `Rows`, which say where the next forward pass writes and how far it reads."""

    def __init__(self, rows: Rows, number: int) -> None:
        super().__init__()
        self.rows, self.number = rows, number
        self.dtype, self.device, self.is_initialized = rows.dtype, rows.device, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        rows, slots = self.rows, self.rows.first + self.rows.rows_K
        new = (states[rows.rows_K, :, rows.tokens_K] for states in (key_states, value_states))
        rows.write(self.number, slots, rows.columns_K, *new)
        keys, values = (states[rows.first : rows.first + len(key_states)] for states in rows.layer(self.number))
        return keys[:, :, : rows.width], values[:, :, : rows.width]

    def get_seq_length(self) -> int:
        return self.rows.width


class Rows:
    """Keys and values: of each layer `[2, slots, heads, columns, head_dim]`; a row is in one slot.

    Args:
        layers: how many.
        kv_shape: heads of keys, and of values, and their size.
        like: a tensor of the device and type to use.

    Attributes:
        limit: columns of the longest possible sequence; no room is reserved beyond them.
    """

    def __init__(self, layers: int, kv_shape: tuple[int, int], like: Tensor) -> None:
        heads, head_dim = kv_shape
        self.dtype, self.device = like.dtype, like.device
        self.buffers = [like.new_zeros((2, 0, heads, 0, head_dim)) for _ in range(layers)]
        self.first = self.width = 0
        self.limit = sys.maxsize

    def cache(self) -> Cache:
        """The cache that a model takes as `past_key_values`."""
        return Cache(layers=[RowLayer(self, number) for number in range(len(self.buffers))])

    def reserve(self, slots: int, columns: int, lengths: Sequence[int]) -> None:
        """Make room for so many rows, and for so many tokens in each; what the first rows hold stays.

        Columns grow by half or by `_AT_ONCE`: contexts grow with every turn, and whatever grows moves all rows. One
        layer moves after the other, so that old and new buffers are never there at once.

        Args:
            slots: how many.
            columns: how many.
            lengths: tokens that the rows of the first slots hold; those of other slots are lost.
        """
        _, held_slots, heads, held_columns, head_dim = self.buffers[0].shape
        if slots <= held_slots and columns <= held_columns:
            return
        if columns > held_columns:
            columns = max(columns, min(held_columns + min(held_columns // 2, _AT_ONCE), self.limit))
        shape = (2, max(slots, held_slots), heads, max(columns, held_columns), head_dim)
        rows, width = len(lengths), max(lengths, default=0)
        for number, buffer in enumerate(self.buffers):
            self.buffers[number] = moved = buffer.new_zeros(shape)
            moved[:, :rows, :, :width] = buffer[:, :rows, :, :width]

    def put(self, slot: int, parts: Sequence[Tensor], length: int) -> None:
        """Let a row begin with the first `length` tokens of these parts, each `[2 * layers, heads, T, head_dim]`."""
        start = 0
        for part in parts:
            end = min(start + part.shape[2], length)
            for number, buffer in enumerate(self.buffers):
                buffer[:, slot, :, start:end] = part[2 * number : 2 * number + 2, :, : end - start]
            start = end

    def get(self, slot: int, start: int, end: int) -> Tensor:
        """A copy of a row's tokens from `start` up to `end`: `[2 * layers, heads, T, head_dim]`."""
        return torch.cat([buffer[:, slot, :, start:end] for buffer in self.buffers])

    def copy(self, source: int, target: int, length: int) -> None:
        """Put the first `length` tokens of one slot's row into another slot."""
        for buffer in self.buffers:
            buffer[:, target, :, :length] = buffer[:, source, :, :length]

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, `[slots, heads, columns, head_dim]` each; not copies."""
        keys, values = self.buffers[number]
        return keys, values

    def write(self, number: int, slots_T: Tensor, columns_T: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values `[T, heads, head_dim]` of one layer at these columns of these slots, `[T]` int64 each."""
        for states, new in zip(self.layer(number), (keys, values), strict=True):
            states[slots_T, :, columns_T] = new.to(states.dtype)

    def aim(self, first: int, starts_B: Tensor, counts: Sequence[int], width: int) -> Tensor:
        """Prepare a forward pass of the rows from slot `first` on; returns the column `[B, N]` of each token.

        A token of the input that no row is fed has column 0, or one that its row holds already, and is not written.

        Args:
            first: the slot of the first row.
            starts_B: how many tokens each row holds already, `[B]` int64 on the device.
            counts: how many each is fed now; they end at the last of the N = max(counts) tokens of the input.
            width: the greatest length of a row after the pass.
        """
        device, N = starts_B.device, max(counts)
        self.first, self.width = first, width
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        tokens = [token for count in counts for token in range(N - count, N)]
        self.rows_K, self.tokens_K = torch.tensor(rows, device=device), torch.tensor(tokens, device=device)
        offsets_B = starts_B - N + torch.tensor(counts, device=device)
        self.columns_K = offsets_B[self.rows_K] + self.tokens_K
        return (offsets_B[:, None] + torch.arange(N, device=device)).clamp(min=0)

"""Key-value caches of single sequences, put together into a batch for one turn and taken apart after it.

Between turns each episode owns exactly its own keys and values, without padding. For a turn they lie in one buffer with
as many columns as the longest sequence can need, so a decoded token costs a write and not a copy of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer


class BufferLayer(DynamicLayer):
    """One layer's cache in buffers allocated in advance; `keys` and `values` are views of the filled part."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        super().__init__()
        self.written_BN: Tensor | None = None  # which of the next columns each row really writes; None: all of them
        self.key_buffer, self.value_buffer, self.filled = keys, values, filled
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._view()

    def _view(self) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self.key_buffer[:, :, : self.filled], self.value_buffer[:, :, : self.filled]
        return self.keys, self.values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        end = self.filled + key_states.shape[-2]
        for buffer, states in ((self.key_buffer, key_states), (self.value_buffer, value_states)):
            columns = buffer[:, :, self.filled : end]
            if self.written_BN is not None:  # elsewhere lies what the row has kept
                states = torch.where(self.written_BN[:, None, :, None], states, columns)
            columns.copy_(states)
        self.filled = end
        return self._view()

    def get_seq_length(self) -> int:
        return self.filled

    def select(self, rows: Tensor) -> None:
        """Keep only these batch rows."""
        self.key_buffer, self.value_buffer = self.key_buffer[rows], self.value_buffer[rows]
        self._view()

    def shift(self, columns: int) -> None:
        """Drop the first columns."""
        for buffer in (self.key_buffer, self.value_buffer):
            buffer[:, :, : self.filled - columns] = buffer[:, :, columns : self.filled].clone()
        self.filled -= columns
        self._view()


class BatchCache(Cache):
    """The caches of B sequences in one buffer, in which all of them end at the same column.

    Args:
        kept: for each row its keys and values `[2 * layers, heads, length, head_dim]`; length may be 0.
        ends: for each row the column before which its kept part ends.
        filled: the first column that the next forward pass writes; kept parts may lie beyond it (`write_only`).
        columns: of the buffer.
    """

    layers: list[BufferLayer]

    def __init__(self, kept: Sequence[Tensor], ends: Sequence[int], filled: int, columns: int) -> None:
        double_layers, heads, _, head_dim = kept[0].shape
        self.columns = columns
        buffer = kept[0].new_zeros((double_layers, len(kept), heads, columns, head_dim))
        for index, (row, end) in enumerate(zip(kept, ends, strict=True)):
            buffer[:, index, :, end - row.shape[2] : end] = row
        super().__init__(layers=[BufferLayer(buffer[i], buffer[i + 1], filled) for i in range(0, double_layers, 2)])

    @property
    def full(self) -> bool:
        """Whether no column is left."""
        return self.layers[0].filled == self.columns

    def write_only(self, written_BN: Tensor | None) -> None:
        """The next forward pass has N tokens a row, of which only these are real; None: all of them."""
        for layer in self.layers:
            layer.written_BN = written_BN

    def shift(self, columns: int) -> None:
        """Drop the first columns, which no row uses."""
        for layer in self.layers:
            layer.shift(columns)

    def row(self, index: int, columns_T: Tensor) -> Tensor:
        """Keys and values of one row at these columns: `[2 * layers, heads, T, head_dim]`."""
        return torch.stack(
            [
                buffer[index].index_select(1, columns_T)
                for layer in self.layers
                for buffer in (layer.key_buffer, layer.value_buffer)
            ]
        )

    def select(self, rows: Tensor) -> None:
        """Keep only these batch rows."""
        for layer in self.layers:
            layer.select(rows)


def empty_row(config: PretrainedConfig, like: Tensor) -> Tensor:
    """The cache of a sequence of length 0, `[2 * layers, heads, 0, head_dim]`, with the device and type of `like`."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return like.new_zeros((2 * config.num_hidden_layers, heads, 0, head_dim))

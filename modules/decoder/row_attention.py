"""Attention within rows: each token of a forward pass reads its own row up to its place, and nothing of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from modules.decoder.kv_cache import Rows

# Layer, queries, keys and values [T, heads, head_dim] of new tokens -> what these read [T, heads * head_dim].
Read = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Piece = tuple[int, int, int]  # slot, first column, the column after the last


def reading(rows: Rows, pieces: Sequence[Piece], work: torch.dtype) -> Read:
    """Attention of a prefill: pieces of consecutive tokens of rows, one piece after the other; computed in `work`."""
    device = rows.device
    slots = [slot for slot, start, end in pieces for _ in range(start, end)]
    columns = [column for _, start, end in pieces for column in range(start, end)]
    slots_T, columns_T = torch.tensor(slots, device=device), torch.tensor(columns, device=device)
    masks = [
        None if start == 0 else up_to(torch.arange(start, end, device=device), end, work) for _, start, end in pieces
    ]

    def read(layer: int, queries_THD: Tensor, keys_THD: Tensor, values_THD: Tensor) -> Tensor:
        rows.write(layer, slots_T, columns_T, keys_THD, values_THD)
        keys, values = rows.layer(layer)
        parts, first = [], 0
        for (slot, start, end), mask in zip(pieces, masks, strict=True):
            queries = queries_THD[first : first + end - start]
            first += end - start
            parts.append(_grouped(queries.to(work), keys[slot, :, :end].to(work), values[slot, :, :end].to(work), mask))
        return torch.cat(parts)

    return read


def whole(counts: Sequence[int], work: torch.dtype) -> Read:
    """Attention within whole sequences laid end to end; their keys and values are not kept."""

    def read(layer: int, queries_THD: Tensor, keys_THD: Tensor, values_THD: Tensor) -> Tensor:
        parts = zip(
            *(states.to(work).split(list(counts)) for states in (queries_THD, keys_THD, values_THD)), strict=True
        )
        return torch.cat(
            [_grouped(queries, keys.transpose(0, 1), values.transpose(0, 1), None) for queries, keys, values in parts]
        )

    return read


def stepping(rows: Rows, lengths_B: Tensor, width: int) -> Read:
    """Attention of a decode step: one token in each of the first B slots, whose rows hold `lengths_B` earlier ones.

    The queries of a group lie side by side, so keys and values are read once for all of them.

    Args:
        rows: where keys and values lie.
        lengths_B: `[B]` int64.
        width: how many columns are read of each row.
    """
    slots_B = torch.arange(len(lengths_B), device=lengths_B.device)
    mask = up_to(lengths_B, width, rows.dtype)[:, None, None]

    def read(layer: int, queries_BHD: Tensor, keys_BHD: Tensor, values_BHD: Tensor) -> Tensor:
        rows.write(layer, slots_B, lengths_B, keys_BHD, values_BHD)
        keys, values = (states[: len(lengths_B), :, :width] for states in rows.layer(layer))
        queries = queries_BHD.unflatten(1, (keys.shape[1], -1))
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).flatten(1)

    return read


def _grouped(queries_NHD: Tensor, keys_HTD: Tensor, values_HTD: Tensor, mask: Tensor | None) -> Tensor:
    """Attention output of N tokens, `[N, heads * head_dim]`; causal where no mask `[N, T]` is given.

    All queries of a group read the same keys.
    """
    queries = queries_NHD.unflatten(1, (len(keys_HTD), -1)).permute(1, 2, 0, 3)
    grouped = (-1, queries.shape[1], -1, -1)
    keys, values = keys_HTD[:, None].expand(grouped), values_HTD[:, None].expand(grouped)
    if mask is not None and keys.is_cuda:  # with a mask its kernels have misread keys that lie in one place
        keys, values = keys.contiguous(), values.contiguous()
    read = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
    return read.permute(2, 0, 1, 3).flatten(1)


def up_to(columns_N: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """`[N, width]`, added to scores: 0 in columns up to and with the given one, minus infinity behind it."""
    behind = torch.arange(width, device=columns_N.device) > columns_N[:, None]
    return torch.zeros(behind.shape, dtype=dtype, device=behind.device).masked_fill_(behind, float("-inf"))

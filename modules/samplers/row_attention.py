"""How the queries of a forward pass read the keys and values of their own rows, and nothing of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from modules.samplers.kv_cache import Rows

Attend = Callable[[int, Tensor], Tensor]  # layer, queries [T, heads, head_dim] -> [T, heads * head_dim]
Piece = tuple[int, int, int]  # slot, first column, the column after the last


def reading(rows: Rows, pieces: Sequence[Piece], work: torch.dtype) -> Attend:
    """Attention of tokens that follow each other in their rows, one piece after the other; computed in `work`."""
    device = rows.buffer.device
    masks = [
        None if start == 0 else up_to(torch.arange(start, end, device=device), end, work) for _, start, end in pieces
    ]

    def attend(layer: int, queries_THD: Tensor) -> Tensor:
        keys, values = rows.layer(layer)
        heads, first = [], 0
        for (slot, start, end), mask in zip(pieces, masks, strict=True):
            queries = queries_THD[first : first + end - start].unflatten(1, (keys.shape[1], -1))
            first += end - start
            grouped = (-1, queries.shape[2], -1, -1)  # all queries of a group read the same keys
            read = F.scaled_dot_product_attention(
                queries.permute(1, 2, 0, 3).to(work),
                keys[slot, :, None, :end].to(work).expand(grouped),
                values[slot, :, None, :end].to(work).expand(grouped),
                attn_mask=mask,
                is_causal=mask is None,
            )
            heads.append(read.permute(2, 0, 1, 3).flatten(1))
        return torch.cat(heads)

    return attend


def stepping(rows: Rows, lengths_B: Tensor, width: int) -> Attend:
    """Attention of one token in each of the first B slots, whose rows hold `lengths_B` others.

    The queries of a group lie side by side, so keys and values are read once for all of them.

    Args:
        rows: where keys and values lie.
        lengths_B: `[B]` int64.
        width: how many columns are read of each row.
    """
    mask = up_to(lengths_B, width, rows.buffer.dtype)[:, None, None]

    def attend(layer: int, queries_BHD: Tensor) -> Tensor:
        keys, values = (states[: len(lengths_B), :, :width] for states in rows.layer(layer))
        queries = queries_BHD.unflatten(1, (keys.shape[1], -1))
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).flatten(1)

    return attend


def up_to(columns_N: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """`[N, width]`, added to scores: 0 in columns up to and with the given one, minus infinity behind it."""
    behind = torch.arange(width, device=columns_N.device) > columns_N[:, None]
    return torch.zeros(behind.shape, dtype=dtype, device=behind.device).masked_fill_(behind, float("-inf"))

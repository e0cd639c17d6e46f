"""What a step does between the products of an attention layer, on a CPU, in one call compiled by Numba.

A step of sampling has one token a row, and few queries a head. PyTorch's kernels are made for many: with a few they
spend their time on setting up small products, and between them on calls that take longer than their work. Here one call
normalises and rotates queries and keys, keeps keys and values, and reads the row: as far as it goes and no further,
keys and values once for all queries of a group. What a row gets does not depend on the others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from modules.decoder.cpu.compiled import LANES, attention_kernel
from modules.decoder.kv_cache import Rows
from modules.decoder.row_attention import Attend, Rotation

_MOST_QUERIES = 8  # of a group: their sums must fit into registers
_NO_NORMS = np.empty((0, 0), np.float32)
_f = np.float32


def fits(rows: Rows, heads: int) -> bool:
    """Whether `cpu_stepping` can read these rows with so many query heads."""
    kv_heads, head_dim = rows.buffer.shape[2], rows.buffer.shape[4]
    known = rows.buffer.device.type == "cpu" and rows.buffer.dtype in (torch.float32, torch.bfloat16)
    return known and head_dim % LANES == 0 and heads <= kv_heads * _MOST_QUERIES


def cpu_stepping(rows: Rows, lengths_B: Tensor, rotation: Rotation, eps: float) -> Attend:
    """Attention of one new token in each of the first B slots; everything in it is in float32.

    Args:
        rows: where keys and values lie; `fits` holds for them.
        lengths_B: `[B]` int64, how many tokens each of the slots holds beside the new one.
        rotation: of the new tokens.
        eps: of the norms of queries and keys.

    What a layer's product gave must be contiguous.
    """
    lengths = lengths_B.numpy()
    cos_BD, sin_BD = (table.float().numpy() for table in rotation)
    kv_heads, head_dim = rows.buffer.shape[2], rows.buffer.shape[4]

    def attend(layer: int, qkv_BHD: Tensor, qk_norm: Tensor | None) -> Tensor:
        assert qkv_BHD.is_contiguous()  # the vectors are read by address
        heads = qkv_BHD.shape[1] - 2 * kv_heads
        read_BHD = torch.empty(len(qkv_BHD), heads, head_dim, dtype=torch.float32)
        norms = _NO_NORMS if qk_norm is None else qk_norm.float().numpy()
        states = (_array(states) for states in rows.layer(layer))
        kernel = attention_kernel(heads // kv_heads, head_dim)
        kernel(qkv_BHD.float().numpy(), norms, cos_BD, sin_BD, _f(eps), *states, lengths, read_BHD.numpy())
        return read_BHD.flatten(1).to(qkv_BHD.dtype)

    return attend


def _array(tensor: Tensor) -> np.ndarray:
    """The same memory for NumPy, which has no bfloat16: its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()

"""What a step does between the products of an attention layer, on a CPU, in one call compiled by Numba.

A step of sampling has one token a row, and few queries a head. PyTorch's kernels are made for many: with a few they
spend their time on setting up small products, and between them on calls that take longer than their work. Here one call
normalises and rotates queries and keys, keeps keys and values, and reads the row: as far as it goes and no further,
keys and values once for all queries of a group. What a row gets does not depend on the others.

Every operation and its order is written down, with no freedom for the compiler: what Numba compiles and what it loads
from its cache is optimised differently, and a run that goes on must end in the same bits.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from modules.samplers.elementwise import exp, write_placed
from modules.samplers.kv_cache import Rows
from modules.samplers.llvm_vectors import LANES, write_column, write_means, write_scores
from modules.samplers.row_attention import Attend, Rotation

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
    """
    lengths = lengths_B.numpy()
    cos_BD, sin_BD = (table.float().numpy() for table in rotation)
    kv_heads, head_dim = rows.buffer.shape[2], rows.buffer.shape[4]

    def attend(layer: int, qkv_BHD: Tensor, qk_norm: Tensor | None) -> Tensor:
        heads = qkv_BHD.shape[1] - 2 * kv_heads
        read_BHD = torch.empty(len(qkv_BHD), heads, head_dim)
        norms = _NO_NORMS if qk_norm is None else qk_norm.float().numpy()
        states = (_array(states) for states in rows.layer(layer))
        kernel = _kernel(heads // kv_heads, head_dim)
        kernel(qkv_BHD.float().numpy(), norms, cos_BD, sin_BD, _f(eps), *states, lengths, read_BHD.numpy())
        return read_BHD.flatten(1).to(qkv_BHD.dtype)

    return attend


def _array(tensor: Tensor) -> np.ndarray:
    """The same memory for NumPy, which has no bfloat16: its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@cache
def _kernel(G: int, D: int) -> Any:
    """Keeps keys and values at column `lengths` of their rows; what the queries read goes to `read`.

    `qkv` is `[B, heads, D]`, queries first; `norms` `[query and key heads, D]`; `cos` and `sin` are `[B, D]`, `keys`
    and `values` `[slots, heads, columns, D]`, `read` `[B, query heads, D]`.
    """
    scale = _f(1 / math.sqrt(D))

    @njit(parallel=True, error_model="numpy", cache=True)
    def kernel(
        qkv: Any, norms: Any, cos: Any, sin: Any, eps: Any, keys: Any, values: Any, lengths: Any, read: Any
    ) -> None:
        B, kv_heads = len(lengths), keys.shape[1]
        heads = G * kv_heads
        for b in prange(B):
            T = lengths[b] + 1
            turned = np.empty((heads + kv_heads, D), np.float32)
            write_placed(qkv[b], norms, cos[b], sin[b], eps, turned)
            p = np.empty((G, (T + LANES - 1) // LANES * LANES), np.float32)
            for h in range(kv_heads):
                write_column(turned[heads + h], keys[b, h, T - 1], D)
                write_column(qkv[b, heads + kv_heads + h], values[b, h, T - 1], D)
                queries = turned[h * G : (h + 1) * G]
                for g in range(G):
                    for d in range(D):
                        queries[g, d] *= scale
                write_scores(queries, keys[b, h], T, p, G, D)
                for g in range(G):
                    largest = _largest(p[g, :T])
                    for t in range(T):
                        p[g, t] = exp(p[g, t] - largest)
                write_means(p, values[b, h], T, read[b, h * G : (h + 1) * G], G, D)

    return kernel


@njit(fastmath=True)  # in any order it is the same
def _largest(x: Any) -> Any:
    """The greatest of those numbers that are numbers."""
    largest = x[0]
    for i in range(len(x)):
        largest = max(largest, x[i])
    return largest

"""What lies between the products of a layer: norms, the gate and rotary positions.

On float32 numbers of a CPU each is one pass over memory, compiled by Numba, in place of several calls. Every operation
and its order is written down, as in `modules.samplers.cpu_attention`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numba import config, njit, prange, set_num_threads
from torch import Tensor

from modules.samplers.llvm_vectors import LANES, float_of

_f = np.float32
_cores: int = vars(config)["NUMBA_NUM_THREADS"]


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square layer normalisation over the last dimension, in float32."""
    if x.ndim == 2 and _compiles(x):
        answer = torch.empty_like(x)
        _write_normed(x.numpy(), weight.numpy(), _f(eps), answer.numpy())
        return answer
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return (x * torch.rsqrt(norm.square_() / x.shape[-1] + eps)).to(x.dtype) * weight


def gated(gate_up_TD: Tensor) -> Tensor:
    """`silu(gate) * up` of the two halves `[T, D]` each of the input."""
    gate, up = gate_up_TD.chunk(2, dim=-1)
    if not _compiles(gate_up_TD):
        return F.silu(gate, inplace=True).mul_(up)
    answer = torch.empty(gate.shape)
    _write_gated(gate_up_TD.numpy(), answer.numpy())
    return answer


def placed(qk_THD: Tensor, norms: Tensor | None, cos_TD: Tensor, sin_TD: Tensor, eps: float) -> Tensor:
    """Queries and keys after their norms, where they have such, and with rotary positions.

    Args:
        qk_THD: `[T, heads, head_dim]`.
        norms: weights `[heads, head_dim]`.
        cos_TD, sin_TD: of the angles of the T positions, `[T, head_dim]`.
        eps: of the norms.
    """
    if _compiles(qk_THD):
        answer = torch.empty(qk_THD.shape)
        weights = (qk_THD.new_empty(0, 0) if norms is None else norms).numpy()
        _write_placed(qk_THD.numpy(), weights, cos_TD.numpy(), sin_TD.numpy(), _f(eps), answer.numpy())
        return answer
    x = qk_THD if norms is None else normed(qk_THD, norms, eps)
    half = x.shape[-1] // 2
    cos, sin = cos_TD[:, None], sin_TD[:, None]
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned.to(qk_THD.dtype)


def share_threads() -> None:
    """Let the compiled loops of this thread use as many threads as PyTorch does, until they are told again."""
    set_num_threads(min(torch.get_num_threads(), _started_threads()))


@cache
def _started_threads() -> int:
    """Let Numba start its threads, one a core; says how many. It may set PyTorch's number too: both use OpenMP."""
    threads = torch.get_num_threads()
    set_num_threads(_cores)
    torch.set_num_threads(threads)
    return _cores


def _compiles(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.shape[-1] % LANES == 0


@njit(parallel=True, error_model="numpy", cache=True)
def _write_normed(x: Any, weight: Any, eps: Any, normed: Any) -> None:
    for t in prange(len(x)):
        write_normed(x[t], weight, eps, normed[t])


@njit(parallel=True, error_model="numpy", cache=True)
def _write_gated(gate_up: Any, gated: Any) -> None:
    half = gated.shape[1]
    for t in prange(len(gated)):
        for d in range(half):
            gate = gate_up[t, d]
            small = exp(-abs(gate))
            share = _f(1) if gate >= _f(0) else small
            gated[t, d] = gate * share / (_f(1) + small) * gate_up[t, half + d]


@njit(parallel=True, error_model="numpy", cache=True)
def _write_placed(qk: Any, norms: Any, cos: Any, sin: Any, eps: Any, placed: Any) -> None:
    for t in prange(len(qk)):
        write_placed(qk[t], norms, cos[t], sin[t], eps, placed[t])


@njit(inline="always", error_model="numpy")
def write_placed(x: Any, norms: Any, cos: Any, sin: Any, eps: Any, placed: Any) -> None:
    """`placed` of one token; no norms are `[0, 0]`."""
    half = x.shape[1] // 2
    for h in range(len(placed)):
        turned = placed[h]
        if len(norms):
            write_normed(x[h], norms[h], eps, turned)
        else:
            turned[:] = x[h]
        for d in range(half):
            a, b = turned[d], turned[half + d]
            turned[d] = a * cos[d] - b * sin[d]
            turned[half + d] = b * cos[half + d] + a * sin[half + d]


@njit(inline="always", error_model="numpy")
def write_normed(x: Any, weight: Any, eps: Any, normed: Any) -> None:
    """`normed` of one row; squares are added up in lanes, as vectors are."""
    sums = np.zeros(LANES, np.float32)
    for first in range(0, len(x), LANES):
        for lane in range(LANES):
            sums[lane] += x[first + lane] * x[first + lane]
    total = _f(0)
    for lane in range(LANES):
        total += sums[lane]
    factor = _f(1) / np.sqrt(total / _f(len(x)) + eps)
    for d in range(len(x)):
        normed[d] = x[d] * factor * weight[d]


@njit(inline="always")
def exp(x: Any) -> Any:
    """e^x for x <= 0 without a call for each number: 2^n times the polynomial of the Cephes library for the rest."""
    x = _f(-87) if x < _f(-87) else x  # e^-87 is next to the least float32
    n = np.floor(x * _f(1.44269504) + _f(0.5))
    r = x - n * _f(0.693359375) + n * _f(2.12194440e-4)  # log 2 in two parts, the first of few digits
    y = _f(1.9875691500e-4)
    y = y * r + _f(1.3981999507e-3)
    y = y * r + _f(8.3334519073e-3)
    y = y * r + _f(4.1665795894e-2)
    y = y * r + _f(1.6666665459e-1)
    y = y * r + _f(5.0000001201e-1)
    return (y * r * r + r + _f(1)) * float_of((np.int32(n) + np.int32(127)) << np.int32(23))

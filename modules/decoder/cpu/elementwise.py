"""What lies between the products of a layer: norms, the gate and rotary positions.

On float32 numbers of a CPU each is one compiled pass over memory, in place of several calls.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numba import config, set_num_threads
from torch import Tensor

from modules.decoder.cpu.compiled import LANES, gated_rows, normed_rows, placed_rows

_f = np.float32
_cores: int = vars(config)["NUMBA_NUM_THREADS"]


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square layer normalisation over the last dimension, in float32."""
    if x.ndim == 2 and _compiles(x):
        answer = torch.empty_like(x)
        normed_rows(x.numpy(), weight.numpy(), _f(eps), answer.numpy())
        return answer
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return (x * torch.rsqrt(norm.square_() / x.shape[-1] + eps)).to(x.dtype) * weight


def gated(gate_up_TD: Tensor) -> Tensor:
    """`silu(gate) * up` of the two halves `[T, D]` each of the input, which may be overwritten."""
    gate, up = gate_up_TD.chunk(2, dim=-1)
    if not _compiles(gate_up_TD):
        return F.silu(gate, inplace=True).mul_(up)
    answer = torch.empty(gate.shape, dtype=torch.float32)
    gated_rows(gate_up_TD.numpy(), answer.numpy())
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
        answer = torch.empty(qk_THD.shape, dtype=torch.float32)
        weights = (qk_THD.new_empty(0, 0) if norms is None else norms).numpy()
        placed_rows(qk_THD.numpy(), weights, cos_TD.numpy(), sin_TD.numpy(), _f(eps), answer.numpy())
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

"""Sampling whose random numbers belong to the token, not to the batch row or a global generator.

A token is drawn by the Gumbel-max rule: argmax of log-probability plus Gumbel noise, where the noise is a hash of
(the request's seed, the token's position in its turn, the vocabulary entry). So an episode samples the same tokens
alone, in any batch, on any rank and on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A 32-bit finaliser with full avalanche (MurmurHash3 fmix32), on int64 tensors holding 32-bit values."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


def gumbel_noise(seeds_B: Tensor, positions_B: Tensor, vocabulary: int) -> Tensor:
    """Standard Gumbel noise `[B, V]` float32, a pure function of (seed, position, entry).

    Args:
        seeds_B: `[B]` int64, up to 63 bits each.
        positions_B: `[B]` int64, the index of the token within its turn.
        vocabulary: V.
    """
    high, low = seeds_B >> 32, seeds_B & _MASK
    row_B = _mix(_mix(_mix(low) ^ (high & _MASK)) ^ ((positions_B * 0x9E3779B9) & _MASK))
    entry_V = _mix(torch.arange(1, vocabulary + 1, device=seeds_B.device))
    bits_BV = _mix(row_B[:, None] ^ entry_V[None, :])
    # 23 bits and a half fit a float32 exactly: more would round up to 1, whose noise is infinite.
    uniform_BV = ((bits_BV >> 9).float() + 0.5) / 2**23
    return -torch.log(-torch.log(uniform_BV))


def keep_top_p(logps_BV: Tensor, top_p: float) -> Tensor:
    """Log-probabilities with everything outside the smallest set of mass >= `top_p` set to -inf; not renormalised.

    The most probable entry is always kept. Source: Holtzman et al. 2020 (arXiv 1904.09751), nucleus sampling.
    """
    if top_p >= 1.0:
        return logps_BV
    ordered_BV, order_BV = logps_BV.sort(dim=-1, descending=True)
    before_BV = ordered_BV.exp().cumsum(dim=-1) - ordered_BV.exp()
    dropped_BV = torch.zeros_like(logps_BV, dtype=torch.bool).scatter(-1, order_BV, before_BV >= top_p)
    return logps_BV.masked_fill(dropped_BV, float("-inf"))


def choose_tokens(
    logits_BV: Tensor,
    seeds_B: Tensor,
    positions_B: Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
    forced_B: Tensor | None = None,
    greedy_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One token a row and its log-probability at the sampling temperature, before top-p.

    `temperature` 0 is greedy for all rows, with log-probabilities at temperature 1.

    Args:
        logits_BV: `[B, V]`.
        seeds_B: `[B]` int64.
        positions_B: `[B]` int64.
        temperature: >= 0.
        top_p: in (0, 1].
        forced_B: `[B]` int64, the token that a row takes in any case, -1 where it is sampled; None where all are.
        greedy_B: `[B]` bool, rows that take the most probable token at any temperature; None where none does.

    Returns:
        ids `[B]` int64, log-probabilities `[B]` float32.
    """
    logps_BV = torch.log_softmax(logits_BV.float() / (temperature or 1.0), dim=-1)
    scores_BV = logps_BV
    if temperature > 0:
        noise_BV = gumbel_noise(seeds_B, positions_B, logits_BV.shape[-1])
        scores_BV = keep_top_p(logps_BV, top_p) + noise_BV
        if greedy_B is not None:
            scores_BV = torch.where(greedy_B[:, None], logps_BV, scores_BV)
    ids_B = scores_BV.argmax(dim=-1)
    if forced_B is not None:
        ids_B = torch.where(forced_B >= 0, forced_B, ids_B)
    return ids_B, logps_BV.gather(-1, ids_B[:, None]).squeeze(-1)

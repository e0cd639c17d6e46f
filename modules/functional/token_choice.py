"""Sampling whose random numbers belong to the token, not to the batch row or a global generator.

A token is drawn by inverting the cumulative distribution at one random number, which is a hash of the request's seed
and the token's position in its turn. So an episode samples the same tokens alone, in any batch, on any rank and on any
device, except where rounding moves a border between two tokens across the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_BLOCK = 256  # entries of the vocabulary that are added up together: only one block's are looked at one by one


def _mix(x: Tensor) -> Tensor:
    """A 32-bit finaliser with full avalanche (MurmurHash3 fmix32), on int64 tensors holding 32-bit values."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


def uniforms(seeds_B: Tensor, positions_B: Tensor, attempt: int = 0) -> Tensor:
    """Random numbers `[B]` float64 in (0, 1), a pure function of (seed, position, attempt).

    Args:
        seeds_B: `[B]` int64, up to 63 bits each.
        positions_B: `[B]` int64, the index of the token within its turn.
        attempt: counts the draws that top-p refused for this token.
    """
    high, low = seeds_B >> 32, seeds_B & _MASK
    bits_B = _mix(_mix(_mix(low) ^ (high & _MASK)) ^ ((positions_B * 0x9E3779B9) & _MASK))
    bits_B = _mix((bits_B + (attempt + 1) * 0x9E3779B9) & _MASK)
    return (bits_B.double() + 0.5) / 2**32


def draw(weights_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The entry `[B]` int64 at which the cumulative sum of a row's weights first exceeds the number's share of it all.

    Sums of blocks find the block, and the entries of that block alone are then added up one by one.

    Args:
        weights_BV: `[B, V]`, not negative; V a multiple of the block's 256.
        uniforms_B: `[B]` float64 in (0, 1).
    """
    blocks = weights_BV.reshape(len(weights_BV), -1, _BLOCK)
    sums = blocks.sum(dim=-1).double()
    ends = sums.cumsum(dim=-1)
    target = uniforms_B[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True).clamp(max=ends.shape[-1] - 1)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block[:, 0]].double().cumsum(dim=-1)
    rest = (target - ends.gather(-1, block) + sums.gather(-1, block)).clamp(min=0)
    rest = torch.minimum(rest, inside[:, -1:] * (1 - 1e-12))  # the two sums of a block round differently
    return (block * _BLOCK + torch.searchsorted(inside, rest, right=True).clamp(max=_BLOCK - 1))[:, 0]


def more_probable(weights_BV: Tensor, ids_B: Tensor) -> Tensor:
    """Mask of the entries that come before the given ones by weight, the first among equals: `[B, V]` bool."""
    own_B1 = weights_BV.gather(-1, ids_B[:, None])
    earlier = torch.arange(weights_BV.shape[-1], device=ids_B.device) < ids_B[:, None]
    return (weights_BV > own_B1) | ((weights_BV == own_B1) & earlier)


def draw_top_p(weights_BV: Tensor, seeds_B: Tensor, positions_B: Tensor, top_p_B: Tensor) -> Tensor:
    """Draw from the smallest set of entries whose share of the weight is >= `top_p`, without sorting: `[B]` int64.

    An entry is in that set where those before it weigh less than `top_p`. One that is not is refused together with all
    that come after it, and another is drawn from the rest, which follows the same distribution within the set. So a
    draw costs one comparison with all entries, and about `1 / top_p` attempts or fewer.

    Source: Holtzman et al. 2020 (arXiv 1904.09751), nucleus sampling.
    """
    ids_B = torch.zeros_like(seeds_B)
    limits_B = top_p_B.to(weights_BV.device, torch.float64) * weights_BV.sum(dim=-1).double()
    rows = torch.arange(len(ids_B), device=ids_B.device)
    attempt = 0
    while len(rows):
        drawn = draw(weights_BV, uniforms(seeds_B[rows], positions_B[rows], attempt))
        ids_B[rows] = drawn
        before = more_probable(weights_BV, drawn)
        weights_BV = weights_BV * before
        refused = weights_BV.sum(dim=-1).double() >= limits_B[rows]
        rows, weights_BV, attempt = rows[refused], weights_BV[refused], attempt + 1
    return ids_B


@dataclass(frozen=True, slots=True)
class RowSettings:
    """Sampling settings of the rows of a batch, copied to the device once and used for many tokens.

    Attributes:
        divisor_B1: temperatures `[B, 1]`, 1 where the most probable token is wanted; None where all are 1.
        best_B: `[B]` bool, rows that take the most probable token; None where none does.
        top_p_B: `[B]` float64; None where all are 1.
        all_best: whether all rows take the most probable token.
    """

    divisor_B1: Tensor | None
    best_B: Tensor | None
    top_p_B: Tensor | None
    all_best: bool

    @classmethod
    def of(
        cls, temperatures: Sequence[float], top_p: Sequence[float], greedy: Sequence[bool], device: torch.device
    ) -> RowSettings:
        """Settings of B rows.

        Args:
            temperatures: >= 0; 0 takes the most probable token, with its log-probability at temperature 1.
            top_p: in (0, 1].
            greedy: rows that take the most probable token at any temperature.
            device: that of the logits.
        """
        best = [wanted or temperature == 0 for temperature, wanted in zip(temperatures, greedy, strict=True)]
        divisors = [temperature or 1.0 for temperature in temperatures]
        same = all(divisor == 1 for divisor in divisors)
        return cls(
            divisor_B1=None if same else torch.tensor(divisors, device=device)[:, None],
            best_B=torch.tensor(best, device=device) if any(best) else None,
            top_p_B=torch.tensor(top_p, device=device, dtype=torch.float64) if min(top_p) < 1 else None,
            all_best=all(best),
        )


def choose_tokens(
    logits_BV: Tensor, seeds_B: Tensor, positions_B: Tensor, settings: RowSettings, *, forced_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One token a row and its log-probability at the row's temperature, before top-p.

    Args:
        logits_BV: `[B, V]`.
        seeds_B: `[B]` int64.
        positions_B: `[B]` int64.
        settings: of the B rows.
        forced_B: `[B]` int64, the token that a row takes in any case, -1 where it is sampled; None where all are.

    Returns:
        ids `[B]` int64, log-probabilities `[B]` float32.
    """
    B, V = logits_BV.shape
    scaled_BV = logits_BV.float()
    if settings.divisor_B1 is not None:
        scaled_BV = scaled_BV / settings.divisor_B1
    highest_B1 = scaled_BV.amax(dim=-1, keepdim=True)
    weights_BV = scaled_BV.new_empty((B, -(-V // _BLOCK) * _BLOCK))
    weights_BV[:, V:] = 0
    torch.sub(scaled_BV, highest_B1, out=weights_BV[:, :V]).exp_()
    if settings.all_best:
        ids_B = scaled_BV.argmax(dim=-1)
    else:
        if settings.top_p_B is None:
            ids_B = draw(weights_BV, uniforms(seeds_B, positions_B))
        else:
            ids_B = draw_top_p(weights_BV, seeds_B, positions_B, settings.top_p_B)
        ids_B = ids_B.clamp(max=V - 1)
        if settings.best_B is not None:
            ids_B = torch.where(settings.best_B, scaled_BV.argmax(dim=-1), ids_B)
    if forced_B is not None:
        ids_B = torch.where(forced_B >= 0, forced_B, ids_B)
    logps_B1 = scaled_BV.gather(-1, ids_B[:, None]) - highest_B1 - weights_BV.sum(dim=-1, keepdim=True).log()
    return ids_B, logps_B1[:, 0]

"""Log-probabilities of given tokens, and the entropy of the distributions they come from."""

from __future__ import annotations

import torch
from torch import Tensor


def token_logprobs(logits_BTV: Tensor, ids_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of each id under the logits at its position, at a sampling temperature.

    `logits_BTV[:, t]` predicts `ids_BT[:, t]`: the caller shifts. Computed in float32 whatever the input type, one row
    at a time, so that no second `[B, T, V]` tensor is held.

    Args:
        logits_BTV: `[B, T, V]`.
        ids_BT: `[B, T]` integer.
        temperature: > 0; the logits are divided by it.

    Returns:
        `[B, T]` float32.
    """
    if logits_BTV.shape[:2] != ids_BT.shape:
        raise ValueError(f"logits {tuple(logits_BTV.shape)} do not predict ids {tuple(ids_BT.shape)}")
    rows = [
        torch.log_softmax(logits_TV.float() / temperature, dim=-1).gather(-1, ids_T[:, None]).squeeze(-1)
        for logits_TV, ids_T in zip(logits_BTV, ids_BT, strict=True)
    ]
    return torch.stack(rows) if rows else logits_BTV.new_zeros(ids_BT.shape, dtype=torch.float32)


def token_entropy(logits_BTV: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of the distribution at each position, `[B, T, V]` -> `[B, T]` float32, row by row as above."""
    rows: list[Tensor] = []
    for logits_TV in logits_BTV:
        logps_TV = torch.log_softmax(logits_TV.float() / temperature, dim=-1)
        rows.append(-(logps_TV.exp() * logps_TV).nansum(dim=-1))
    return torch.stack(rows) if rows else logits_BTV.new_zeros(logits_BTV.shape[:2], dtype=torch.float32)


def changed_logits(logits: Tensor, scale: float, cap: float | None) -> Tensor:
    """Logits after a factor and, where there is one, a soft cap: `cap * tanh(scale * logits / cap)`, of any shape."""
    if scale != 1:
        logits = logits * scale
    return logits if cap is None else cap * torch.tanh(logits / cap)

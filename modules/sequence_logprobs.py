"""Log-probabilities that a model gives to the tokens of a batch of sequences."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from envs.packing import SequenceBatch
from modules.functional.logprobs import token_logprobs


def trained_positions(batch: SequenceBatch) -> Tensor:
    """The K positions that are trained in any row, `[K]`."""
    trained_T = batch.loss_mask_BT.any(dim=0)
    trained_T[0] = False  # nothing predicts the first token
    return trained_T.nonzero().squeeze(-1)


def trained_logits(model: PreTrainedModel, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    """Logits `[B, K, V]` that predict the K positions trained in any row, and those positions `[K]`.

    The vocabulary is large and most of an agent's context is not trained: no logits are computed for the rest. Padding
    is on the right, where a causal model never reads it, so no mask is needed and attention may use its causal kernel.
    """
    positions_K = trained_positions(batch)
    output = model(input_ids=batch.ids_BT, logits_to_keep=positions_K - 1)
    return output.logits, positions_K


def sequence_logprobs(model: PreTrainedModel, batch: SequenceBatch, temperature: float = 1.0) -> Tensor:
    """Log-probability of every trained token, `[B, T]` float32 with 0 elsewhere."""
    logits_BKV, positions_K = trained_logits(model, batch)
    logps_BK = token_logprobs(logits_BKV, batch.ids_BT[:, positions_K], temperature)
    return scatter_to_tokens(logps_BK, positions_K, batch)


def scatter_to_tokens(values_BK: Tensor, positions_K: Tensor, batch: SequenceBatch) -> Tensor:
    """Put the values of K positions at their places: `[B, K]` -> `[B, T]`, 0 where nothing is trained."""
    values_BT = torch.zeros(batch.ids_BT.shape, dtype=values_BK.dtype, device=values_BK.device)
    return values_BT.index_copy(1, positions_K, values_BK).masked_fill(~batch.loss_mask_BT, 0.0)

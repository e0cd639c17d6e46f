"""Log-probabilities that a model gives to the tokens of a batch of sequences."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from envs.packing import SequenceBatch
from modules.hidden_states import logprobs_of_states, read_states


def sequence_logprobs(model: PreTrainedModel, batch: SequenceBatch, temperature: float = 1.0) -> Tensor:
    """Log-probability of every trained token, `[B, T]` float32 with 0 elsewhere."""
    return logprobs_and_entropy(model, batch, temperature)[0]


def logprobs_and_entropy(
    model: PreTrainedModel, batch: SequenceBatch, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of every trained token, and the entropy in nats of the distribution that it comes from.

    `[B, T]` float32 each, with 0 elsewhere. Logits are computed for the trained tokens alone, a few at a time.
    """
    places = trained_places(batch)

    def read(hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_of_states(model, before(hidden_BTD, places), batch.ids_BT[places], temperature)

    logps_N, entropy_N = read_states(model, batch.ids_BT, read)
    return to_tokens(logps_N, places, batch), to_tokens(entropy_N, places, batch)


def trained_places(batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    """Row and column of each of the N trained tokens, `[N]` each; nothing predicts the first of a row."""
    mask_BT = batch.loss_mask_BT.clone()
    mask_BT[:, 0] = False
    row_N, column_N = mask_BT.nonzero(as_tuple=True)
    return row_N, column_N


def before(hidden_BTD: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
    """`[N, D]`: the hidden states that the tokens at these places were chosen in, one token earlier."""
    row_N, column_N = places
    return hidden_BTD[row_N, column_N - 1]


def to_tokens(values_N: Tensor, places: tuple[Tensor, Tensor], batch: SequenceBatch) -> Tensor:
    """Put the values of N tokens at their places: `[N]` -> `[B, T]`, 0 elsewhere."""
    values_BT = torch.zeros(batch.ids_BT.shape, dtype=values_N.dtype, device=values_N.device)
    return values_BT.index_put(places, values_N)

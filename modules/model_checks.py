"""Checks of a loaded causal language model: training reads a batch as the model reads each of its rows alone."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.errors import ConfigError
from envs.packing import PackedSequence, collate
from modules.functional.logprobs import token_logprobs
from modules.sequence_logprobs import sequence_logprobs

_ROWS = (12, 7)  # tokens of the rows that a model is checked with


@torch.no_grad()
def require_independent_rows(model: PreTrainedModel) -> None:
    """Require that log-probs of a padded batch are those of a plain forward pass of each row: tried with two rows.

    They are not where tokens read later ones, as in an encoder, or where rows or their padding share anything.

    Raises:
        ConfigError: they are not.
    """
    kind = f"{type(model).__name__} ({model.config.model_type})"
    training = model.training
    try:
        found, own = _logprobs(model.eval())
    except ConfigError:
        raise
    except Exception as error:  # whatever a model does with rows that it was not made for
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{kind} cannot be read as a causal language model: {reason}; see docs/models.md") from error
    finally:
        model.train(training)
    gap = float((found - own).abs().mean())
    if gap > (0.01 if model.dtype == torch.float32 else 0.25):
        raise ConfigError(
            f"{kind} gives a token another log-prob (by {gap:.2g}) alone than in a batch, or before later tokens than "
            "without: it is no causal language model of independent rows; give one of docs/models.md"
        )


def _logprobs(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Log-probs of the tokens of two rows in a batch, as training computes them, and of each row alone."""
    vocabulary, device = model.get_input_embeddings().weight.shape[0], model.device
    rows = [torch.tensor([(7 + 11 * token + 5 * row) % vocabulary for token in range(T)]) for row, T in enumerate(_ROWS)]
    packed = [PackedSequence(ids.int(), ids >= 0, torch.zeros_like(ids), torch.zeros(len(ids))) for ids in rows]
    batch = collate(packed)._changed(lambda tensor_BT: tensor_BT.to(device))
    found = sequence_logprobs(model, batch).cpu()
    own = [token_logprobs(model(input_ids=ids[None].to(device)).logits[:, :-1].cpu(), ids[None, 1:])[0] for ids in rows]
    return torch.cat([found[row, 1 : len(ids)] for row, ids in enumerate(rows)]), torch.cat(own)

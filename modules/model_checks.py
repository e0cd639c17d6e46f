"""Checks of a loaded causal language model: training reads a batch as the model reads each of its rows alone."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.errors import ConfigError
from envs.packing import PackedSequence, collate
from modules.functional.logprobs import token_logprobs
from modules.positions import longest_row
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
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise ConfigError(
            f"{kind} cannot be read as a causal language model ({type(error).__name__}: {reason}): give a model of "
            "docs/models.md"
        ) from error
    finally:
        model.train(training)
    gap = float((found - own).abs().mean() / own.std().clamp(min=0.01))
    if gap > (1e-3 if model.dtype == torch.float32 else 0.1):
        raise ConfigError(
            f"{kind} gives other log-probs (by {gap:.1%} of their deviation) to a row in a batch than alone: it is no "
            "causal language model, or its rows are not independent; give a model of docs/models.md"
        )


def _logprobs(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Log-probs of the tokens of two rows in a batch, as training computes them, and of each row alone."""
    vocabulary, device = len(cast(Tensor, model.get_input_embeddings().weight)), model.device
    most, _ = longest_row(model.config) or (max(_ROWS), "")
    lengths = [min(T, most) for T in _ROWS]
    rows = [torch.tensor([(7 + 11 * t + 5 * row) % vocabulary for t in range(T)]) for row, T in enumerate(lengths)]
    packed = [PackedSequence(ids.int(), ids >= 0, torch.zeros_like(ids), torch.zeros(len(ids))) for ids in rows]
    batch = collate(packed)._changed(lambda tensor_BT: tensor_BT.to(device))
    found = sequence_logprobs(model, batch).cpu()
    own = [token_logprobs(model(input_ids=ids[None].to(device)).logits[:, :-1].cpu(), ids[None, 1:])[0] for ids in rows]
    return torch.cat([found[row, 1 : len(ids)] for row, ids in enumerate(rows)]), torch.cat(own)

"""Supervised fine-tuning on episodes with weighted control tokens (ProRAG Eq 1); with weight 1 it is ProRAG's RFT."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from common.errors import ConfigError
from envs.packing import SequenceBatch
from modules.functional.losses import format_weighted_nll, token_weights
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy, embedding_rows
from modules.sequence_logprobs import sequence_logprobs
from modules.training import Training


class SFT(Training):
    """Trains a policy on the policy's tokens of episodes.

    Args:
        control_weight: weight of control tokens, the tokenizer's special tokens; all others have weight 1.
        tag_weights: replaces `control_weight` by a weight for each of these tags.

    Raises:
        ConfigError: a weight is negative, or a tag of `tag_weights` is not in the tokenizer.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        control_weight: float = 3.0,
        tag_weights: dict[str, float] | None = None,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__(policy, optimizer, lora=lora, gradient_checkpointing=gradient_checkpointing)
        weight_V = _weights(policy, control_weight, tag_weights, embedding_rows(policy.model))
        self.register_buffer("weight_V", weight_V, persistent=False)
        self.weight_V: Tensor
        self.val_loss = MeanMetric()  # over all ranks and batches, each weighed by what its loss is a mean of

    def training_step(self, batch: SequenceBatch, index: int) -> Tensor:
        return self.mean_loss(*self._loss(batch))

    def validation_step(self, batch: SequenceBatch, index: int) -> None:
        total, count = self._loss(batch)
        self.val_loss.update(total / count.clamp(min=1e-8), weight=count)
        self.log("val_loss", self.val_loss)

    def _loss(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Sum of weighted losses, sum of weights."""
        logps_BT = sequence_logprobs(self.model, batch)
        weight_BT = self.weight_V[batch.ids_BT]
        control_BT = weight_BT != 1
        total = format_weighted_nll(logps_BT, batch.loss_mask_BT, control_BT, control_weight=weight_BT, reduction="sum")
        count = token_weights(batch.loss_mask_BT, control_BT, weight_BT).sum()
        return total, count


def _weights(policy: Policy, control_weight: float, tag_weights: dict[str, float] | None, rows: int) -> Tensor:
    """The weight of every entry of the vocabulary, `[V]`."""
    if not all(0 <= weight < math.inf for weight in (control_weight, *(tag_weights or {}).values())):
        raise ConfigError(f"control_weight {control_weight}, tag_weights {tag_weights}: a weight must be 0 or more")
    weight_V = torch.ones(rows)
    if tag_weights is None:
        weight_V[list(policy.tokenizer.all_special_ids)] = control_weight
        return weight_V
    vocabulary = policy.tokenizer.get_vocab()
    for tag, weight in tag_weights.items():
        if tag not in vocabulary:
            raise ConfigError(f"tag_weights names {tag!r}, which is not in the policy's tokenizer")
        weight_V[vocabulary[tag]] = weight
    return weight_V

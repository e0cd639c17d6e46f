"""Frozen reference policy: where its weights are, and its log-probs of a batch."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from envs.packing import SequenceBatch
from envs.token_ids import require_same
from modules.lora import LoRA, adapters_disabled, has_adapters
from modules.policy import Policy
from modules.sequence_logprobs import sequence_logprobs


def frozen_reference(reference: Policy, policy: Policy, lora: LoRA | None) -> Policy:
    """The reference, frozen; called before the policy gets adapters.

    Where it is the policy's own component (equal components of a config are one object) it is the policy as it is now:
    a copy or, where `lora` will train adapters, the model with its adapters disabled, which takes no memory.

    Raises:
        ConfigError: its tokenizer is not the policy's.
    """
    require_same(reference.tokenizer, policy.tokenizer, "reference and policy")
    own = reference.model is policy.model
    if own and lora is not None and not has_adapters(policy.model):
        return reference
    model = copy.deepcopy(policy.model) if own else reference.model
    return Policy(model.eval().requires_grad_(False), reference.tokenizer)


@torch.no_grad()
def reference_logprobs(
    reference: Policy, model: PreTrainedModel, batch: SequenceBatch, temperature: float = 1.0
) -> Tensor:
    """`[B, T]` float32: the reference's log-probs of the trained tokens; `model` is the one that trains."""
    if reference.model is model:
        with adapters_disabled(model):
            return sequence_logprobs(model, batch, temperature)
    return sequence_logprobs(reference.model, batch, temperature)

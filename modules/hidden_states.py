"""A language model read at its last hidden states, without the logits of all tokens and without a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from common.errors import ConfigError
from modules.functional.linear_logprobs import linear_logprobs
from modules.functional.logprobs import token_entropy, token_logprobs

Answer = TypeVar("Answer", bound=Tensor | tuple[Tensor, ...])


def read_states(model: PreTrainedModel, ids_BT: Tensor, read: Callable[[Tensor], Answer]) -> Answer:
    """Run a model and give its last hidden states to `read`, in place of its output layer.

    Padding is on the right, where a causal model never reads it, so no mask is needed and attention may use its causal
    kernel. The whole model is called, not its backbone: a sharded model gathers its parameters, those of the output
    layer among them, when it is called.

    Args:
        ids_BT: `[B, T]`.
        read: from hidden states `[B, T, D]` to what is wanted of them.

    Raises:
        ConfigError: the model changes its logits after the output layer, or has none.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ConfigError(f"{type(model).__name__} has no output layer: give a causal language model")
    answers: list[Answer] = []

    def in_its_place(hidden_BTD: Tensor) -> Answer:
        answers.append(read(hidden_BTD))
        return answers[0]

    head.forward = in_its_place
    try:
        output = model(input_ids=ids_BT, use_cache=False)
    finally:
        del head.forward
    if output.logits is not answers[0]:
        raise ConfigError(
            f"{type(model).__name__} changes its logits after the output layer (a soft cap or a scale), which is not "
            "supported: give a model of the Llama, Mistral, Qwen2 or Qwen3 family"
        )
    return answers[0]


def logprobs_of_states(
    model: PreTrainedModel, hidden_ND: Tensor, ids_N: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each id given the last hidden state before it, and the entropy there, `[N]` float32 each.

    Called by what `read_states` calls. An output layer that is more than a matrix (a bias, adapters of its own) is run
    as it is, on all N states at once.
    """
    head = cast(Any, model.get_output_embeddings())
    if isinstance(head, (nn.Linear, TrainableTokensWrapper)) and getattr(head, "bias", None) is None:
        return linear_logprobs(hidden_ND, cast(Any, head).weight, ids_N, temperature)
    logits_1NV = cast(Any, type(head)).forward(head, hidden_ND)[None]
    logps_1N = token_logprobs(logits_1NV, ids_N[None], temperature)
    return logps_1N[0], token_entropy(logits_1NV, temperature)[0]

"""A language model read at its last hidden states, without the logits of all tokens and without a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from common.errors import ConfigError
from modules.functional.linear_logprobs import float32_product, linear_logprobs
from modules.functional.logprobs import changed_logits, token_entropy, token_logprobs
from modules.positions import require_row_fits

Answer = TypeVar("Answer", bound=Tensor | tuple[Tensor, ...])


def read_states(model: PreTrainedModel, ids_BT: Tensor, read: Callable[[Tensor], Answer], **call: Any) -> Answer:
    """Run a model and give its last hidden states to `read`, in place of its output layer.

    Padding is on the right, where a causal model never reads it, so no mask is needed and attention may use its causal
    kernel. The whole model is called, not its backbone: a sharded model gathers its parameters, those of the output
    layer among them, when it is called. The answer is put into its output, which a sharded model prepares gradients of.

    Args:
        ids_BT: `[B, T]`.
        read: from hidden states `[B, T, D]` to what is wanted of them.
        call: more arguments of the model; with `logits_to_keep` fewer states are read.

    Raises:
        ConfigError: the model has no output layer, changes its logits in a way that `logit_change` does not know, or
            has no positions for T tokens.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ConfigError(f"{type(model).__name__} has no output layer: give a causal language model")
    require_row_fits(model.config, ids_BT.shape[1])
    answers: list[Answer] = []
    logits_11N = torch.tensor([[[-30.0, -1.0, 0.5, 40.0]]], device=ids_BT.device)

    def in_its_place(hidden_BTD: Tensor) -> Tensor:
        answers.append(read(hidden_BTD))
        return logits_11N

    def put_in(_: nn.Module, __: Any, output: Any) -> None:
        if len(answers) != 1 or not _same(output.logits, changed_logits(logits_11N, *logit_change(model))):
            raise ConfigError(
                f"{type(model).__name__} ({model.config.model_type}) changes its logits after the output layer "
                "in a way that is not known: give a model of docs/models.md"
            )
        output.logits = answers[0]

    head.forward = in_its_place
    hook = model.register_forward_hook(put_in, prepend=True)
    try:
        model(input_ids=ids_BT, **({"use_cache": False} | call))
    finally:
        hook.remove()
        del head.forward
    return answers[0]


def logprobs_of_states(
    model: PreTrainedModel, hidden_ND: Tensor, ids_N: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each id given the last hidden state before it, and the entropy there, `[N]` float32 each.

    For use in the `read` of `read_states`. An output layer that is more than a matrix (a bias, adapters of its own) is
    run as it is, on all N states at once.
    """
    if (weight_VD := _head_matrix(model)) is not None:
        scale, cap = logit_change(model)
        return linear_logprobs(hidden_ND, weight_VD, ids_N, temperature, scale=scale, cap=cap)
    logits_1NV = logits_of_states(model, hidden_ND)[None]
    logps_1N = token_logprobs(logits_1NV, ids_N[None], temperature)
    return logps_1N[0], token_entropy(logits_1NV, temperature)[0]


def logits_of_states(model: PreTrainedModel, hidden_ND: Tensor) -> Tensor:
    """Logits `[N, V]` of last hidden states, float32 where the output layer is a matrix, as `logprobs_of_states`.

    Called by what `read_states` calls.
    """
    head, weight_VD = cast(Any, model.get_output_embeddings()), _head_matrix(model)
    logits_NV = type(head).forward(head, hidden_ND) if weight_VD is None else float32_product(hidden_ND, weight_VD.T)
    return changed_logits(logits_NV, *logit_change(model))


def _head_matrix(model: PreTrainedModel) -> Tensor | None:
    """The weight of the output layer, `[V, D]`; None where it is more than a matrix."""
    head = cast(Any, model.get_output_embeddings())
    plain = isinstance(head, (nn.Linear, TrainableTokensWrapper)) and getattr(head, "bias", None) is None
    return cast(Any, head).weight if plain else None


def logit_change(model: PreTrainedModel) -> tuple[float, float | None]:
    """Change of a model's logits after its output layer: a factor, then a soft cap; 1 and None for most."""
    config = model.config.get_text_config()
    factor, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)  # Cohere, Granite
    scale = float(factor) if isinstance(factor, int | float) else 1 / (divisor or 1)
    return scale, getattr(config, "final_logit_softcapping", None)  # Gemma


def _same(found: Tensor, expected: Tensor) -> bool:
    """Whether they are equal but for rounding; one tensor is, without a look at a GPU's numbers."""
    return found is expected or (found.shape == expected.shape and torch.allclose(found.float(), expected))

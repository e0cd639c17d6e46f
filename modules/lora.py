"""Low-rank adapters (LoRA, Hu et al. 2021) as a component: what they train, and how they are saved, alone or merged."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils.constants import SAFETENSORS_WEIGHTS_NAME
from peft.utils.other import TrainableTokensWrapper
from safetensors.torch import save_file
from torch import Tensor, nn

from common.errors import ConfigError
from modules.policy import Policy

_ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LoRA:
    """Freezes a policy's model and trains low-rank additions to its linear layers, in float32 whatever the model is.

    Args:
        r: rank.
        alpha: an addition counts `alpha / r` times.
        dropout: of what enters an adapter.
        targets: names of the linear layers, such as q_proj; None takes all but the head.
        trainable_tokens: the embeddings of the tokenizer's special tokens, a format's tags among them, train too: as
            input and, where the head has rows of its own, as output. Tags that a model has just got need it.

    Raises:
        ConfigError: a setting is out of range.
    """

    r: int = 16
    alpha: float = 32
    dropout: float = 0.0
    targets: list[str] | None = None
    trainable_tokens: bool = True

    def __post_init__(self) -> None:
        if self.r < 1 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            given = f"lora: r {self.r}, alpha {self.alpha}, dropout {self.dropout}"
            raise ConfigError(f"{given}: r must be at least 1, alpha above 0, dropout in [0, 1)")

    def apply(self, policy: Policy) -> None:
        """Put the adapters into the policy's model, in place; they begin as no change at all.

        Raises:
            ConfigError: no layer of the model has one of the names.
        """
        config = LoraConfig(
            r=self.r,
            lora_alpha=cast(int, self.alpha),
            lora_dropout=self.dropout,
            target_modules="all-linear" if self.targets is None else self.targets,
            trainable_token_indices=self._tokens(policy) if self.trainable_tokens else None,
        )
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # between two libraries
        try:
            get_peft_model(policy.model, config, adapter_name=_ADAPTER)
        except ValueError as error:
            raise ConfigError(f"lora.targets {self.targets}: {str(error).splitlines()[0]}") from error

    def _tokens(self, policy: Policy) -> dict[str, list[int]]:
        """The rows that train, by the name of the table; a tied head follows the embedding."""
        tables = [policy.model.get_input_embeddings()]
        if not policy.model.config.get_text_config().tie_word_embeddings:
            tables.append(cast(nn.Module, policy.model.get_output_embeddings()))
        names = {module: name.rpartition(".")[2] for name, module in policy.model.named_modules()}
        return {names[table]: sorted(policy.tokenizer.all_special_ids) for table in tables}


def has_adapters(model: nn.Module) -> bool:
    """Whether a model was given adapters."""
    return any(_is_adapter(name) for name, _ in model.named_parameters())


def merged(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a model with its adapters added to its weights, in float32: that of the same model without any.

    Bfloat16 would round away what is less than half a step of its grid, most of what an adapter adds to a weight.
    Works on names and whole tensors alone, so `model` may be sharded and `state` gathered from it.
    """
    plain = {name: value.float() for name, value in state.items()}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            weight = plain[f"{name}.base_layer.weight"]
            down, up = (plain[f"{name}.lora_{side}.{_ADAPTER}.weight"] for side in "AB")
            plain[f"{name}.base_layer.weight"] = weight + module.scaling[_ADAPTER] * (up @ down)
        elif isinstance(module, TrainableTokensWrapper):
            adapter = module.token_adapter
            rows = torch.tensor(adapter.token_indices[_ADAPTER])
            weight = plain[f"{name}.token_adapter.base_layer.weight"]
            trained = plain[f"{name}.token_adapter.trainable_tokens_delta.{_ADAPTER}"]
            plain[f"{name}.token_adapter.base_layer.weight"] = weight.index_copy(0, rows, trained)
    kept = {name: value for name, value in plain.items() if not _is_adapter(name)}
    return {name.replace(".token_adapter", "").replace(".base_layer", ""): value for name, value in kept.items()}


def save_adapters(model: nn.Module, state: Mapping[str, Tensor], folder: Path) -> None:
    """Write the adapters of a model in PEFT's format, for the base they were trained on; `state` as in `merged`."""
    config = copy.copy(cast(dict[str, LoraConfig], model.peft_config)[_ADAPTER])
    config.target_modules = sorted(config.target_modules or ())  # a set, whose order differs from run to run
    found = get_peft_model_state_dict(model, state_dict=dict(state), adapter_name=_ADAPTER)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    tensors = {f"base_model.model.{name}": value.contiguous() for name, value in found.items()}
    save_file(tensors, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})


def _is_adapter(name: str) -> bool:
    return any(f".{part}." in name for part in ("lora_A", "lora_B", "trainable_tokens_delta"))

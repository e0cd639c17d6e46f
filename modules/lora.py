"""Low-rank adapters (LoRA, Hu et al. 2021) as a component: what they train, how they are disabled, merged and saved."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.constants import SAFETENSORS_WEIGHTS_NAME
from peft.utils.other import AuxiliaryTrainingWrapper, TrainableTokensWrapper
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from common.errors import ConfigError
from modules.policy import Policy

_ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LoRA:
    """Freezes a policy's model and trains low-rank additions to its linear layers, in float32 whatever the model is.

    Args:
        r: rank.
        alpha: an addition counts `alpha / r` times.
        dropout: on the input of an adapter.
        targets: names of the linear layers, such as q_proj; None takes all but the head.
        trainable_tokens: train the embeddings of the tokenizer's special tokens too, a format's tags among them: as
            input and, where the head has weights of its own, as output. Newly added tags need it.

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
            settings = f"lora: r {self.r}, alpha {self.alpha}, dropout {self.dropout}"
            raise ConfigError(f"{settings}: r must be at least 1, alpha above 0, dropout in [0, 1)")

    def apply(self, policy: Policy) -> None:
        """Add the adapters to the policy's model, in place; before training they change no output.

        Raises:
            ConfigError: the model has adapters already; no layer of it has one of the names, or one that has is not
                linear, or shares its weights with the embedding.
        """
        if has_adapters(policy.model):
            raise ConfigError(
                "lora: the policy has adapters already, which new ones would replace: leave its `adapter` out and load "
                "the merged weights of the stage that trained them, its model/"
            )
        self._check_targets(policy.model)
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
        for name, module in policy.model.named_modules():
            if isinstance(module, LoraLayer):
                vars(module)["_cast_input_dtype"] = _cast_unless_autocast
            if isinstance(module, LoraLayer) and not isinstance(module.base_layer, nn.Linear):
                kind = type(module.base_layer).__name__
                raise ConfigError(f"lora.targets {self.targets}: {name} is no linear layer but {kind}: leave it out")

    def _check_targets(self, model: PreTrainedModel) -> None:
        """Require each target to be a layer, and the output layer to have weights of its own, none of which train."""
        layers = [f".{name}" for name, _ in model.named_modules()]
        for target in self.targets or ():  # peft refuses only where no target is a layer
            if not any(layer.endswith(f".{target}") for layer in layers):
                raise ConfigError(f"lora.targets {self.targets}: the model has no layer {target}: leave it out")
        head = _name_of(model.get_output_embeddings(), model)
        if any(f".{head}".endswith(f".{target}") for target in self.targets or ()):
            if is_tied(model):
                raise ConfigError(f"lora.targets {self.targets}: {head} has the embedding's weights: leave it out")
            if self.trainable_tokens:
                raise ConfigError(
                    f"lora.targets {self.targets}: trainable_tokens trains rows of {head} already: leave either out"
                )

    def _tokens(self, policy: Policy) -> dict[str, list[int]]:
        """Ids of the rows that train, by the name of their table."""
        rows = sorted(policy.tokenizer.all_special_ids)
        return {name.rpartition(".")[2]: rows for name in _tables(policy.model)}


def _cast_unless_autocast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The input of an adapter in the adapter's type; PEFT casts it under autocast too, which casts it back."""
    return x if torch.is_autocast_enabled(x.device.type) else x.to(dtype)


def is_tied(model: PreTrainedModel) -> bool:
    """Whether a model's output layer has the embedding's weights."""
    return bool(model.config.get_text_config().tie_word_embeddings)


def _tables(model: PreTrainedModel) -> list[str]:
    """Names of the modules that have a row a token: the embedding and, where it has weights of its own, the head."""
    tables = [model.get_input_embeddings(), *([] if is_tied(model) else [model.get_output_embeddings()])]
    return [_name_of(table, model) for table in tables]


def _name_of(wanted: nn.Module | None, model: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has adapters."""
    return any(_is_adapter(name) for name, _ in model.named_parameters())


@contextmanager
def adapters_disabled(model: nn.Module) -> Iterator[None]:
    """Compute with the base weights alone, in evaluation mode: a frozen reference that takes no memory of its own.

    PEFT's own switch also changes which parameters require a gradient, which DDP and FSDP2 rely on: here only the
    flags that the layers read are set. Run it under `no_grad`.
    """
    layers = [module for module in model.modules() if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))]
    training = model.training
    model.eval()
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
        model.train(training)


def merged(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of the model with its adapters merged into the weights, in float32, under the names of a plain model.

    In bfloat16 most of what an adapter adds to a weight would be rounded away. Only names and whole tensors are used,
    so `model` may be sharded and `state` gathered from it.
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
    return without_adapters(plain)


def without_adapters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a model's state that is not its adapters', under the names of a plain model."""
    kept = {name: value for name, value in state.items() if not _is_adapter(name)}
    return {name.replace(".token_adapter", "").replace(".base_layer", ""): value for name, value in kept.items()}


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """The adapters' part of a model's state, on the CPU."""
    return {name: value.detach().cpu() for name, value in model.named_parameters() if _is_adapter(name)}


def adapter_config(model: nn.Module) -> LoraConfig:
    """The settings of a model's adapters, which it must have."""
    return cast(dict[str, LoraConfig], model.peft_config)[_ADAPTER]


def save_adapters(policy: Policy, state: Mapping[str, Tensor], folder: Path) -> None:
    """Write the adapters of a policy and its tokenizer to `folder` in PEFT's format; `state` as in `merged`.

    The base has no rows for the policy's new tokens: unless they all train, the tables are written too, whole.
    """
    model = policy.model
    config = copy.copy(adapter_config(model))
    config.target_modules = sorted(config.target_modules or ())  # a set, whose order differs from run to run
    # PEFT itself would decide by the vocabulary sizes of two configs, and write a tied table twice.
    adapters = get_peft_model_state_dict(
        model, state_dict=dict(state), adapter_name=_ADAPTER, save_embedding_layers=False
    )
    trained = policy.tokenizer.all_special_ids if config.trainable_token_indices else []
    if policy.new_tokens - {*trained}:
        inside = tuple(f"{name}." for name in _tables(model))
        adapters |= {name: value for name, value in state.items() if name.startswith(inside) and not _is_adapter(name)}
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    tensors = {f"base_model.model.{name}": value.contiguous() for name, value in adapters.items()}
    save_file(tensors, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
    policy.tokenizer.save_pretrained(str(folder))


def _is_adapter(name: str) -> bool:
    return any(f".{part}." in name for part in ("lora_A", "lora_B", "trainable_tokens_delta"))

"""A policy: a causal language model and its tokenizer, loaded, made or saved together."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from common.errors import ConfigError, UserError
from common.gpu import prepare_gpu
from common.precision import ChosenDtype, chosen_dtype
from envs.interfaces import AgentFormat
from envs.text import load_tokenizer, require_present
from envs.token_ids import require_same
from envs.types import Limits
from modules.model_checks import require_independent_rows
from modules.positions import longest_row

prepare_gpu()  # whatever makes a model imports this file first

# `from_pretrained` replaces a method of transformers' base class until it ends. Two calls at once can leave it so:
# every later model of the process would have an output layer without values.
_LOADING = Lock()


@dataclass(slots=True)
class Policy:
    """A causal LM, possibly with a LoRA adapter on it, and the tokenizer it was trained with.

    Dropout of the model's own is turned off, so that log-probs in training are those of sampling; an adapter's stays.

    Attributes:
        new_tokens: ids whose rows are not those of the folder or hub id that the model was loaded from.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    new_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        own = [module for name, module in self.model.named_modules() if "lora_" not in name]
        configs = [config for part in own if isinstance(config := vars(part).get("config"), PretrainedConfig)]
        for part in (*own, *configs):
            for name, value in list(vars(part).items()):
                if isinstance(value, float) and value and _is_noise(part, name):
                    setattr(part, name, 0.0)

    def save(self, folder: Path | str) -> None:
        """Write model and tokenizer in the Hugging Face format.

        Raises:
            ConfigError: the model has adapters, which `modules.training:export_policy` writes.
        """
        if hasattr(self.model, "peft_config") and not getattr(self.model, "_hf_peft_config_loaded", False):
            raise ConfigError(f"{folder}: the policy has adapters: write it by export_policy, which merges them")
        self.model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))


def load_policy(
    model: str,
    *,
    dtype: ChosenDtype = "float32",
    device: str = "auto",
    adapter: Path | None = None,
    revision: str | None = None,
    tokenizer: Path | None = None,
    begin_as: dict[str, str] | None = None,
) -> Policy:
    """Load a policy from a folder or hub id; `adapter` is the `adapter/` folder of a LoRA fit on it.

    The tokenizer is the adapter's where there is one. `tokenizer` replaces the model's own by one that knows more
    tokens, a format's tags: each new one begins as the mean of the tokens that spelt it before, or that spell the text
    that `begin_as` gives for it. (A model of whole words spells all unknown words alike, and would have to learn first
    to tell them apart.) `device` "auto" is CUDA where there is one, else the CPU; `dtype` "auto" is bfloat16 where the
    device multiplies it fast, else float32.

    Raises:
        ConfigError: there is no such model or adapter, it lacks weights, it reads rows otherwise in a batch than alone,
            `tokenizer` numbers the model's tokens otherwise or comes with an adapter, or `begin_as` names a token that
            is not new or a text without tokens.
    """
    require_present(model, "policy")
    place = _device(device)
    try:
        with _LOADING:
            read: Any = AutoModelForCausalLM.from_pretrained(
                model, dtype=chosen_dtype(dtype, place), revision=revision, output_loading_info=True
            )
        loaded, info = read
        if missing := sorted(info["missing_keys"]):
            raise ConfigError(
                f"{model} lacks {len(missing)} weights, such as {missing[0]}, which would be random: it is damaged, or "
                "no causal language model"
            )
        _agree_on_tie(loaded)
        own = load_tokenizer(adapter or model, revision=None if adapter else revision)
        if adapter is not None:
            if len(own) > loaded.config.get_text_config().vocab_size:
                loaded.resize_token_embeddings(len(own), mean_resizing=False)  # the adapter has the new rows
            PeftModel.from_pretrained(loaded, str(adapter))  # changes the model itself; float32 on whatever it is
    except UserError:
        raise
    except Exception as error:  # whatever the library raises for a folder or a model that it cannot load
        what = model if adapter is None else f"{model} with the adapter {adapter}"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"no causal language model at {what}: {reason}") from error
    new_tokens: frozenset[int] = frozenset()
    if tokenizer is not None:
        if adapter is not None:
            raise ConfigError(
                f"load_policy: the tokenizer is that of the adapter {adapter}, so `tokenizer` must be left out"
            )
        extended = load_tokenizer(tokenizer)
        new_tokens, own = _extend(loaded, own, extended, begin_as or {}), extended
    elif begin_as:
        raise ConfigError("load_policy: begin_as is for the new tokens of `tokenizer`, which is not given")
    policy = Policy(_placed(loaded, place), own, new_tokens)
    require_independent_rows(policy.model)
    return policy


def _agree_on_tie(model: PreTrainedModel) -> None:
    """Make a model's config say whether its tables are one: in a checkpoint with two that differ they are two."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is table.weight
    model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = tied


def _extend(
    model: PreTrainedModel,
    old: PreTrainedTokenizerBase,
    new: PreTrainedTokenizerBase,
    begin_as: dict[str, str],
) -> frozenset[int]:
    """Give the model rows for the tokens that only the new tokenizer knows; returns their ids."""
    known, wanted = old.get_vocab(), new.get_vocab()
    if moved := [token for token, number in known.items() if wanted.get(token) != number]:
        raise ConfigError(
            f"tokenizer {new.name_or_path} does not fit this model: it has another id for {len(moved)} of its "
            f"{len(known)} tokens, {moved[0]!r} for one; make it from {old.name_or_path}"
        )
    added = {token: number for token, number in wanted.items() if token not in known}
    if strange := sorted(set(begin_as) - set(added)):
        raise ConfigError(f"begin_as names {strange[0]!r}, which is no new token; new ones are {', '.join(added)}")
    rows = max(wanted.values()) + 1
    if rows > embedding_rows(model):
        model.resize_token_embeddings(rows, mean_resizing=False)
    tables = [
        cast(Tensor, table.weight)
        for table in (model.get_input_embeddings(), cast(torch.nn.Module, model.get_output_embeddings()))
    ]
    with torch.no_grad():
        for table in {id(table): table for table in tables}.values():  # one where they are tied
            for token, number in added.items():
                text = begin_as.get(token, token)
                spelt = old(text, add_special_tokens=False).input_ids
                if not spelt:
                    raise ConfigError(
                        f"{old.name_or_path} has no tokens for {text!r}, as which the new token {token!r} would begin: "
                        "give another text in begin_as"
                    )
                table[number] = table[spelt].mean(dim=0)
    return frozenset(added.values())


def embedding_rows(model: PreTrainedModel) -> int:
    """Number of token ids that a model has rows for; at least as many as its tokenizer has tokens."""
    return len(cast(Tensor, model.get_input_embeddings().weight))


def random_policy(
    tokenizer: Path,
    *,
    hidden_size: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    feed_forward: int = 384,
    max_length: int = 2048,
    seed: int = 0,
    device: str = "auto",
) -> Policy:
    """An untrained Qwen3 of the given size over a tokenizer's vocabulary; the same seed gives the same weights."""
    loaded = load_tokenizer(tokenizer)
    config = Qwen3Config(
        vocab_size=len(loaded),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden_size // heads,
        intermediate_size=feed_forward,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        eos_token_id=loaded.convert_tokens_to_ids(str(loaded.eos_token)),
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return Policy(_placed(model, _device(device)), loaded)


def separate(policies: Mapping[str, Policy], *, shared: bool = False) -> dict[str, Policy]:
    """The policies by name, no two of which are one model: copies where they are.

    Args:
        shared: a copy has layers of its own around the same weights, for adapters on one backbone.
    """
    made: dict[str, Policy] = {}
    for name, policy in policies.items():
        model = policy.model
        if any(other.model is model for other in made.values()):
            weights = {id(weight): weight for weight in model.parameters()} if shared else {}
            model = copy.deepcopy(model, weights)  # pyright: ignore[reportArgumentType]
        made[name] = replace(policy, model=model)
    return made


def end_of_message(policy: Policy) -> frozenset[int]:
    """The token ids that end a message: the tokenizer's and those of the model's generation settings."""
    eos = policy.model.generation_config.eos_token_id if policy.model.generation_config else None
    ids = [policy.tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])]
    return frozenset(token for token in ids if token is not None)


def check_policy(policy: Policy, protocol: AgentFormat, limits: Limits) -> None:
    """Require a policy that can read the protocol's ids, and as many as the limits allow.

    Raises:
        ConfigError: it cannot.
    """
    require_same(policy.tokenizer, protocol.codec.tokenizer, "policy and protocol")
    config = policy.model.config
    if (limit := longest_row(config)) and limits.total_tokens > limit[0]:
        raise ConfigError(
            f"limits.total_tokens is {limits.total_tokens}, but {config.model_type} has {limit[1]} beyond {limit[0]} "
            f"tokens: set it to {limit[0]} at most"
        )
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and limits.total_tokens > longest:
        raise ConfigError(f"limits.total_tokens is {limits.total_tokens}, but the model reads only {longest} tokens")


def _is_noise(part: object, name: str) -> bool:
    """Whether a config's attribute is a rate of dropout or noise in training."""
    return "drop" in name or "jitter" in name or (isinstance(part, torch.nn.Dropout) and name == "p")


def _device(name: str) -> torch.device:
    """`auto` is this process's own CUDA device where there is one."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"cannot put the model on device {name!r}: {str(error).splitlines()[0]}") from error


def _placed(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """The model in evaluation mode on its device."""
    try:
        torch.nn.Module.to(model, device)
    except (RuntimeError, AssertionError) as error:  # no such device, or no room on it
        raise ConfigError(f"cannot put the model on device '{device}': {str(error).splitlines()[0]}") from error
    return model.eval()

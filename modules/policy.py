"""A policy: a causal language model and its tokenizer, loaded, made or saved together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from envs.errors import ConfigError
from envs.text import load_tokenizer

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(slots=True)
class Policy:
    """A causal LM, possibly with a LoRA adapter on it, and the tokenizer it was trained with."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def save(self, folder: Path | str) -> None:
        """Write model and tokenizer in the Hugging Face format; a LoRA adapter is written as an adapter."""
        self.model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))


def load_policy(
    model: str,
    *,
    dtype: Dtype = "float32",
    device: str = "auto",
    adapter: Path | None = None,
    revision: str | None = None,
) -> Policy:
    """Load a policy from a folder or hub id; `adapter` is a folder, saved by `Policy.save`, of a LoRA adapter on it.

    The tokenizer is the adapter's where there is one: it may know more tokens than the base, which then gets rows for
    them. `device` "auto" is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: there is no such model or adapter.
    """
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), revision=revision)
        tokenizer = load_tokenizer(adapter or model, revision=None if adapter else revision)
        if adapter is not None:
            if len(tokenizer) > loaded.config.get_text_config().vocab_size:
                loaded.resize_token_embeddings(len(tokenizer))
            loaded.load_adapter(str(adapter))
    except (OSError, ValueError) as error:
        what = model if adapter is None else f"{model} with the adapter {adapter}"
        reason = str(error).splitlines()[0]
        raise ConfigError(f"no causal language model at {what}: {reason} (`make models` obtains small ones)") from error
    return Policy(_placed(loaded, device), tokenizer)


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
    return Policy(_placed(model, device), loaded)


def _placed(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """The model in evaluation mode on its device; `auto` is this process's own CUDA device where there is one."""
    if device == "auto":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    torch.nn.Module.to(model, torch.device(device))
    return model.eval()

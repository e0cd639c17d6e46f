"""Pretrained encoders and cross-encoders: how they are loaded, and what their answers depend on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import AutoTokenizer

from common.errors import ConfigError
from common.gpu import prepare_gpu
from common.precision import Dtype
from envs.text import require_present

_WEIGHTS = {".json", ".txt", ".model", ".safetensors", ".bin"}


def load_pretrained(
    kind: Any, model: str, what: str, *, max_tokens: int, batch_size: int, device: str, dtype: str, revision: str | None
) -> tuple[Any, Any]:
    """Tokenizer and network of a folder or hub id; `kind` is an auto class of transformers, `what` its name in errors.

    Raises:
        ConfigError: there is no such model, or a setting is out of range.
    """
    if dtype not in get_args(Dtype):
        raise ConfigError(f"{what} {model}: dtype must be one of {', '.join(get_args(Dtype))}; got {dtype!r}")
    if max_tokens < 1 or batch_size < 1:
        raise ConfigError(f"{what} {model}: max_tokens and batch_size must be at least 1")
    require_present(model, what)
    prepare_gpu()
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
        network = kind.from_pretrained(model, revision=revision, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{what} {model}: neither a model folder nor a hub id that can be loaded: {reason}"
        ) from error
    if max_tokens > (positions := getattr(network.config, "max_position_embeddings", max_tokens)):
        raise ConfigError(f"{what} {model}: max_tokens {max_tokens} is more than the model's {positions} positions")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return tokenizer, network.eval().to(device)


def batches_by_length(lengths: list[int], size: int) -> list[list[int]]:
    """Indices of texts in batches of similar lengths, the longest first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[i : i + size] for i in range(0, len(order), size)]


def content_of(model: str, network: Any, revision: str | None) -> list[Any]:
    """Names and content hashes of a model's files, or its hub id and commit."""
    folder = Path(model)
    if not folder.is_dir():
        return [model, getattr(network.config, "_commit_hash", revision)]
    hashes = []
    for name in sorted(path.name for path in folder.iterdir() if path.suffix in _WEIGHTS):
        with open(folder / name, "rb") as file:
            hashes.append([name, hashlib.file_digest(file, "blake2b").hexdigest()])
    return hashes

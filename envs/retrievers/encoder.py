"""Texts to vectors with any Hugging Face encoder: pooling, prefixes and normalisation as in its model card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch.nn.functional import normalize as unit_length
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer

from common.errors import ConfigError
from common.gpu import prepare_gpu
from envs.text import require_present

Pooling = Literal["mean", "cls", "last"]
Dtype = Literal["float32", "float16", "bfloat16"]
_WEIGHTS = {".json", ".txt", ".model", ".safetensors", ".bin"}


class Encoder:
    """An encoder from a folder or the hub, with a prefix for queries and one for passages.

    E5: mean pooling, prefixes `query: ` and `passage: `; BGE: cls pooling, an instruction as query prefix;
    all-MiniLM-L6-v2: mean pooling, no prefix. Texts are cut at `max_tokens`. `identity` is a hash of the model's files
    (or hub commit) and of all settings that change vectors; `passage_identity` is the same without the query prefix.

    Raises:
        ConfigError: there is no such model, or a setting is out of range.
    """

    def __init__(
        self,
        model: str,
        *,
        pooling: Pooling = "mean",
        query_prefix: str = "",
        passage_prefix: str = "",
        normalize: bool = True,
        max_tokens: int = 256,
        batch_size: int = 64,
        device: str = "auto",
        dtype: Dtype = "float32",
        revision: str | None = None,
    ) -> None:
        for name, value, allowed in (("pooling", pooling, get_args(Pooling)), ("dtype", dtype, get_args(Dtype))):
            if value not in allowed:
                raise ConfigError(f"encoder {model}: {name} must be one of {', '.join(allowed)}; got {value!r}")
        if max_tokens < 1 or batch_size < 1:
            raise ConfigError(f"encoder {model}: max_tokens and batch_size must be at least 1")
        require_present(model, "encoder")
        prepare_gpu()
        folder = Path(model)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
            network = AutoModel.from_pretrained(model, revision=revision, dtype=getattr(torch, dtype))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"encoder {model}: neither a model folder nor a hub id that can be loaded: {reason}"
            ) from error
        if max_tokens > (positions := getattr(network.config, "max_position_embeddings", max_tokens)):
            raise ConfigError(
                f"encoder {model}: max_tokens {max_tokens} is more than the model's {positions} positions"
            )
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = network.eval().to(device)
        self._pooling, self._normalize = pooling, normalize
        self._query_prefix, self._passage_prefix = query_prefix, passage_prefix
        self._max_tokens, self._batch_size = max_tokens, batch_size
        self.dimension: int = self.encode_queries([""]).shape[
            1
        ]  # also sets the tokenizer's truncation before threads use it

        files = _content(folder) if folder.is_dir() else [model, getattr(network.config, "_commit_hash", revision)]
        settings = [files, pooling, passage_prefix, normalize, max_tokens, dtype]
        self.passage_identity = _digest(settings)
        self.identity = _digest([*settings, query_prefix])

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [N, D], float32, of queries."""
        return self._encode([self._query_prefix + text for text in texts])

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [N, D], float32, of passages."""
        return self._encode([self._passage_prefix + text for text in texts])

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """How many tokens of each text are read, without prefixes."""
        return [len(self._tokenizer(text, truncation=True, max_length=self._max_tokens).input_ids) for text in texts]

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> np.ndarray:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        rows = self._tokenizer(texts, truncation=True, max_length=self._max_tokens).input_ids
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # similar lengths together, longest first
        batches = [order[i : i + self._batch_size] for i in range(0, len(order), self._batch_size)]
        vectors = torch.cat([self._forward([rows[i] for i in batch]).cpu() for batch in batches])
        restored = torch.empty_like(vectors)
        restored[order] = vectors
        return restored.numpy()

    def _forward(self, rows: list[list[int]]) -> torch.Tensor:
        """Vectors [B, D] of token ids."""
        device = self._model.device
        ids = pad_sequence([torch.tensor(row) for row in rows], True, self._tokenizer.pad_token_id or 0).to(device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        mask = torch.arange(ids.shape[1], device=device) < lengths[:, None]
        hidden_BTD = self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        if self._pooling == "mean":
            vectors = (hidden_BTD * mask[..., None]).sum(1) / lengths[:, None]
        elif self._pooling == "cls":
            vectors = hidden_BTD[:, 0]
        else:
            vectors = hidden_BTD[torch.arange(len(rows), device=device), lengths - 1]
        return unit_length(vectors, dim=-1) if self._normalize else vectors


def _content(folder: Path) -> list[list[str]]:
    """Names and content hashes of a model's files."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in _WEIGHTS)
    hashes = []
    for name in names:
        with open(folder / name, "rb") as file:
            hashes.append([name, hashlib.file_digest(file, "blake2b").hexdigest()])
    return hashes


def _digest(settings: list) -> str:
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=12).hexdigest()

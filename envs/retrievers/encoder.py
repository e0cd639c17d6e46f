"""Texts to vectors with any Hugging Face encoder: pooling, prefixes and normalisation as in its model card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch.nn.functional import normalize as unit_length
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel

from common.errors import ConfigError
from common.hashes import short_digest
from common.plain_text import encodable
from common.precision import Dtype
from envs.retrievers.hub_models import batches_by_length, content_of, load_pretrained

Pooling = Literal["mean", "cls", "last"]


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
        if pooling not in get_args(Pooling):
            raise ConfigError(
                f"encoder {model}: pooling must be one of {', '.join(get_args(Pooling))}; got {pooling!r}"
            )
        self._tokenizer, self._model = load_pretrained(
            AutoModel,
            model,
            "encoder",
            max_tokens=max_tokens,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            revision=revision,
        )
        self._pooling, self._normalize = pooling, normalize
        self._query_prefix, self._passage_prefix = query_prefix, passage_prefix
        self._max_tokens, self._batch_size = max_tokens, batch_size
        self.dimension: int = self.encode_queries([""]).shape[
            1
        ]  # also sets the tokenizer's truncation before threads use it

        files = content_of(model, self._model, revision)
        settings = [files, pooling, passage_prefix, normalize, max_tokens, dtype]
        self.passage_identity = short_digest(settings)
        self.identity = short_digest([*settings, query_prefix])

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
        texts = list(map(encodable, texts))
        rows = self._tokenizer(texts, truncation=True, max_length=self._max_tokens).input_ids
        batches = batches_by_length([len(row) for row in rows], self._batch_size)
        vectors = torch.cat([self._forward([rows[i] for i in batch]).cpu() for batch in batches])
        restored = torch.empty_like(vectors)
        restored[[i for batch in batches for i in batch]] = vectors
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

"""Attention masks of rows by kind of layer: the whole context, a sliding window of it, or its chunk."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PretrainedConfig

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
KNOWN = (FULL, SLIDING, CHUNKED)


def layer_kinds(config: PretrainedConfig) -> list[str]:
    """The kinds of attention layers in the names of transformers, by its own rules, each once."""
    if kinds := getattr(config, "layer_types", None):
        return sorted(set(kinds))
    if "local" in getattr(config, "attention_layers", ()):  # GPT-Neo, which makes its masks itself
        return ["local"]
    window = getattr(config, "sliding_window", None)
    if window and window < getattr(config, "max_position_embeddings", window + 1):
        return [SLIDING]
    return [CHUNKED] if getattr(config, "attention_chunk_size", None) else [FULL]


def row_masks(config: PretrainedConfig, columns_BN: Tensor, width: int) -> dict[str, Tensor]:
    """By kind of layer, which of the first `width` columns of its row each token attends to, `[B, 1, N, width]` bool.

    Args:
        config: of the text model; its layers are of the kinds in `KNOWN`.
        columns_BN: the column of each token, `[B, N]`.
        width: how many columns are read.
    """
    own, read = columns_BN[:, None, :, None], torch.arange(width, device=columns_BN.device)
    return {kind: _attended(config, kind, own, read) for kind in layer_kinds(config)}


def _attended(config: PretrainedConfig, kind: str, own: Tensor, read: Tensor) -> Tensor:
    causal = read <= own
    if kind == SLIDING:
        return causal & (read > own - config.sliding_window)
    if kind == CHUNKED:
        return causal & (read // config.attention_chunk_size == own // config.attention_chunk_size)
    return causal

"""Which columns a token attends to, by kind of layer."""

from __future__ import annotations

import torch
from transformers import Gemma2Config, GPTNeoConfig, Llama4TextConfig, MistralConfig, Qwen3Config

from modules.decoder.attention_masks import layer_kinds, row_masks

COLUMNS = torch.tensor([[4, 5], [0, 1]])  # two tokens in each of two rows


def columns(mask: torch.Tensor) -> list[list[list[int]]]:
    return [[one.nonzero().flatten().tolist() for one in row[0]] for row in mask]


def test_the_whole_context_a_window_and_a_chunk() -> None:
    whole = [[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]], [[0], [0, 1]]]
    gemma = row_masks(
        Gemma2Config(sliding_window=3, layer_types=["sliding_attention", "full_attention"] * 13), COLUMNS, 7
    )
    assert {kind: columns(mask) for kind, mask in gemma.items()} == {
        "full_attention": whole,
        "sliding_attention": [[[2, 3, 4], [3, 4, 5]], [[0], [0, 1]]],
    }
    kinds = ["chunked_attention"] * 48
    chunked = row_masks(Llama4TextConfig(attention_chunk_size=4, layer_types=kinds), COLUMNS, 7)
    assert columns(chunked["chunked_attention"]) == [[[4], [4, 5]], [[0], [0, 1]]]
    assert columns(row_masks(Qwen3Config(), COLUMNS, 7)["full_attention"]) == whole


def test_kinds_of_layers() -> None:
    assert layer_kinds(MistralConfig(sliding_window=16)) == ["sliding_attention"]
    assert layer_kinds(MistralConfig(sliding_window=4096, max_position_embeddings=4096)) == ["full_attention"]
    assert layer_kinds(MistralConfig(sliding_window=None)) == ["full_attention"]
    assert layer_kinds(GPTNeoConfig()) == ["local"]

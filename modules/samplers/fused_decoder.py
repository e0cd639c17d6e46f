"""The forward pass of Llama-like models for sampling: the tokens of all rows side by side, without padding.

It computes what the transformers model computes, in fewer and larger operations: queries, keys and values are one
product, and so are the two of the gate; keys and values go straight to their places in the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
import torch.nn.functional as F
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import LlamaForCausalLM, MistralForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from modules.samplers.cpu_attention import cpu_stepping, fits
from modules.samplers.kv_cache import Rows
from modules.samplers.products import Precision, Product, can_multiply
from modules.samplers.row_attention import Attend, reading, stepping
from modules.samplers.step_graphs import CudaRecorder, StepGraphs

_FAMILY = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_CHUNK = 512  # tokens that are read at once on a CPU: enough for a product, few enough for its caches
_CHUNK_GPU = 8192


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer; `qk_norm` is `[query and key heads, head_dim]`, where the model has such norms."""

    norm: Tensor
    qkv: Product
    qk_norm: Tensor | None
    out: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


class FusedDecoder:
    """Reads and continues rows with a model's weights as they are now; weights that change later need a new one.

    Args:
        model: one for which `can_fuse` holds.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: Any = model.config.get_text_config()
        inner: Any = cast(Any, model).model
        table: Any = model.get_input_embeddings()
        weight = table.weight.detach()  # where tokens have adapters, a copy with their rows
        self.embed: Callable[[Tensor], Tensor] = (
            table if type(table) is nn.Embedding else lambda ids: F.embedding(ids, weight)
        )
        self.rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = inner.rotary_emb
        self.precision = Precision.of(weight)
        self.layers = [self._layer(layer) for layer in inner.layers]
        self.norm = inner.norm.weight.detach()
        self.head = Product([cast(nn.Module, model.get_output_embeddings())], self.precision)
        self.device = weight.device
        self.graphs = StepGraphs(CudaRecorder()) if self.device.type == "cuda" else None

    def rows(self) -> Rows:
        """Empty rows for this decoder."""
        return Rows(self.config, torch.empty(0, dtype=self.precision.stored, device=self.device))

    def read(self, rows: Rows, first: int, new: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Feed rows the tokens that follow what they hold; logits `[B, V]` after the last of each.

        Args:
            rows: where keys and values lie.
            first: the slot of the first of the B rows, which lie in a sequence.
            new: the tokens, at least one a row.
            starts: how many tokens each row holds already.
        """
        last = []
        size = _CHUNK if self.device.type == "cpu" else _CHUNK_GPU
        with torch.autocast(self.device.type, enabled=False):
            for chunk in chunks([len(ids) for ids in new], size):
                ids = [token for row, start, end in chunk for token in new[row][start:end]]
                pieces = [(first + row, starts[row] + start, starts[row] + end) for row, start, end in chunk]
                columns = [column for _, start, end in pieces for column in range(start, end)]
                slots = [slot for slot, start, end in pieces for _ in range(start, end)]
                ids_T, columns_T, slots_T = (torch.tensor(x, device=self.device) for x in (ids, columns, slots))
                attend = reading(rows, pieces, self.precision.work)
                states_TD = self._states(rows, ids_T, columns_T, slots_T, attend)
                after = list(accumulate(end - start for _, start, end in chunk))
                last += [
                    states_TD[t - 1] for t, (row, _, end) in zip(after, chunk, strict=True) if end == len(new[row])
                ]
            return self._logits(torch.stack(last))

    def step(self, rows: Rows, ids_B: Tensor, lengths_B: Tensor, lengths: Sequence[int]) -> Tensor:
        """Feed one token to each of the rows in the first B slots; logits `[B, V]`.

        Args:
            rows: where keys and values lie.
            ids_B: the tokens, `[B]` int64.
            lengths_B: how many tokens each row holds already, `[B]` int64.
            lengths: the same on the host.
        """
        with torch.autocast(self.device.type, enabled=False):
            if self.graphs is not None:
                return self.graphs(self.fixed_step, rows, ids_B, lengths_B, lengths)
            if fits(rows, self.config.num_attention_heads):
                return self._step(rows, ids_B, lengths_B, cpu_stepping(rows, lengths_B))
            return self.fixed_step(rows, ids_B, lengths_B, max(lengths) + 1)

    def fixed_step(self, rows: Rows, ids_B: Tensor, lengths_B: Tensor, width: int) -> Tensor:
        """`step` where all rows read `width` columns: nothing in it but tensors depends on what the rows hold."""
        return self._step(rows, ids_B, lengths_B, stepping(rows, lengths_B, width))

    def _step(self, rows: Rows, ids_B: Tensor, lengths_B: Tensor, attend: Attend) -> Tensor:
        slots_B = torch.arange(len(ids_B), device=self.device)
        return self._logits(self._states(rows, ids_B, lengths_B, slots_B, attend))

    def _states(self, rows: Rows, ids_T: Tensor, columns_T: Tensor, slots_T: Tensor, attend: Attend) -> Tensor:
        """Last hidden states `[T, D]` of tokens at these columns of these slots; their keys and values are written."""
        heads, kv_heads, stored = self.config.num_attention_heads, rows.buffer.shape[2], self.precision.stored
        x_TD = self.embed(ids_T).detach()
        cos, sin = (table[0, :, None] for table in self.rotary(x_TD[None], columns_T[None]))
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(self._normed(x_TD, layer.norm)).unflatten(-1, (heads + 2 * kv_heads, -1))
            qk, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
            if layer.qk_norm is not None:
                qk = self._normed(qk, layer.qk_norm)
            qk = _rotated(qk, cos, sin).to(stored)
            rows.write(number, slots_T, columns_T, qk[:, heads:], values)
            x_TD += layer.out(attend(number, qk[:, :heads]))
            gate, up = layer.gate_up(self._normed(x_TD, layer.mlp_norm)).chunk(2, dim=-1)
            x_TD += layer.down(F.silu(gate, inplace=True).mul_(up))
        return x_TD

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square layer normalisation over the last dimension, in float32."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x * torch.rsqrt(norm.square_() / x.shape[-1] + self.config.rms_norm_eps)).to(x.dtype) * weight

    def _logits(self, states_BD: Tensor) -> Tensor:
        return self.head(self._normed(states_BD, self.norm))

    def _layer(self, layer: Any) -> Layer:
        attention, mlp, precision = layer.self_attn, layer.mlp, self.precision
        qk_norm = None
        if hasattr(attention, "q_norm"):
            heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
            norms = [attention.q_norm.weight.detach()] * heads + [attention.k_norm.weight.detach()] * kv_heads
            qk_norm = torch.stack(norms)
        return Layer(
            layer.input_layernorm.weight.detach(),
            Product([attention.q_proj, attention.k_proj, attention.v_proj], precision),
            qk_norm,
            Product([attention.o_proj], precision),
            layer.post_attention_layernorm.weight.detach(),
            Product([mlp.gate_proj, mlp.up_proj], precision),
            Product([mlp.down_proj], precision),
        )


def can_fuse(model: PreTrainedModel) -> bool:
    """Whether `FusedDecoder` computes what this model does: a Llama, Mistral, Qwen2 or Qwen3 with plain layers."""
    if not any(type(model).forward is kind.forward for kind in _FAMILY) or model.config.hidden_act != "silu":
        return False
    inner: Any = cast(Any, model).model
    if inner.rotary_emb.rope_type in ("dynamic", "longrope"):  # they follow the longest row of a batch
        return False
    linear = [
        child
        for layer in inner.layers
        for block in (layer.self_attn, layer.mlp)
        for name, child in block.named_children()
        if name.endswith("_proj")
    ]
    table = model.get_input_embeddings()
    looks_up = type(table) is nn.Embedding or isinstance(table, TrainableTokensWrapper)
    return looks_up and all(can_multiply(child) for child in [*linear, cast(nn.Module, model.get_output_embeddings())])


def chunks(counts: Sequence[int], size: int) -> list[list[tuple[int, int, int]]]:
    """Cut rows of so many tokens, one after the other, into chunks of `size` tokens: `(row, start, end)` pieces each.

    A row may go on in the next chunk, which reads what the one before it wrote.
    """
    chunks: list[list[tuple[int, int, int]]] = [[]]
    room = size
    for row, count in enumerate(counts):
        start = 0
        while start < count:
            if not room:
                chunks.append([])
                room = size
            end = min(start + room, count)
            chunks[-1].append((row, start, end))
            room -= end - start
            start = end
    return chunks


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, the halves of the last dimension turned against each other."""
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned

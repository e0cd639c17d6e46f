"""The forward pass of Llama-like models without gradients: the tokens of all rows side by side, without padding.

It computes what the transformers model computes, in fewer operations; keys and values go straight to their places in
the rows. Sampling goes through it, and on a CPU a reward model that scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, cast

import torch
import torch.nn.functional as F
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import LlamaForCausalLM, MistralForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from modules.decoder.attention_masks import FULL, layer_kinds
from modules.decoder.fused_linear import FusedLinear, Precision, can_multiply
from modules.decoder.kv_cache import Rows, kv_shape
from modules.decoder.row_attention import Read, reading, stepping, whole
from modules.decoder.step_graphs import CudaRecorder, StepGraphs, padded_rows, padded_width

_FAMILY = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_CHUNK = 512  # tokens that are read at once on a CPU: enough for a matmul, few enough for its caches
_CHUNK_GPU = 8192


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer; norms of queries and keys `[head_dim]` where the model has such."""

    norm: Tensor
    inputs: FusedLinear  # queries, keys and values
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: FusedLinear
    mlp_norm: Tensor
    gate_and_up: FusedLinear
    down: FusedLinear


class FusedDecoder:
    """Reads and continues rows with a model's weights as they are now; weights that change later need a new one.

    Args:
        model: one for which `can_fuse` holds.

    Attributes:
        rows: where keys and values lie, empty at first.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config.get_text_config()
        inner: Any = cast(Any, model).model
        table: Any = model.get_input_embeddings()
        weight = table.weight.detach()  # where tokens have adapters, a copy with their rows
        self.embed: Callable[[Tensor], Tensor] = (
            table if type(table) is nn.Embedding else lambda ids: F.embedding(ids, weight)
        )
        self.rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = inner.rotary_emb
        self.precision = Precision.of(weight)
        self.layers = [self._layer(layer) for layer in inner.layers]
        self.norm, self.eps = inner.norm.weight.detach(), float(config.rms_norm_eps)
        self._output = cast(nn.Module, model.get_output_embeddings())
        self.device = weight.device
        heads, self.head_dim = kv_shape(config)
        like = torch.empty(0, dtype=self.precision.stored, device=self.device)
        self.rows = Rows(len(self.layers), (heads, self.head_dim), like)
        self.graphs = StepGraphs(CudaRecorder(self.device), self.rows) if self.device.type == "cuda" else None

    @cached_property
    def head(self) -> FusedLinear:
        """The output layer, which takes as much memory as the model's vocabulary: only where logits are wanted."""
        return FusedLinear([self._output], self.precision, wide=True)

    def reserve(self, slots: int, columns: int, lengths: Sequence[int]) -> None:
        """`Rows.reserve`, with room for recorded steps, which are larger and must not move rows."""
        if self.graphs is not None:
            slots, columns = padded_rows(slots), padded_width(columns, self.rows.limit)
        self.rows.reserve(slots, columns, lengths)

    def read(self, first: int, new: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Feed rows the tokens that follow what they hold; logits `[B, V]` float32 after the last of each.

        Args:
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
                states_TD = self._states(*self._tensors(ids, columns), reading(self.rows, pieces, self.precision.work))
                after = list(accumulate(end - start for _, start, end in chunk))
                last += [
                    states_TD[t - 1] for t, (row, _, end) in zip(after, chunk, strict=True) if end == len(new[row])
                ]
            return self._logits(torch.stack(last))

    def step(self, ids_B: Tensor, lengths_B: Tensor, lengths: Sequence[int]) -> Tensor:
        """Feed one token to each of the rows in the first B slots; logits `[B, V]`.

        Args:
            ids_B: the tokens, `[B]` int64.
            lengths_B: how many tokens each row holds already, `[B]` int64.
            lengths: the same on the host.
        """
        with torch.autocast(self.device.type, enabled=False):
            if self.graphs is None:
                return self.fixed_step(ids_B, lengths_B, max(lengths) + 1)
            return self.graphs(self.fixed_step, ids_B, lengths_B, lengths)

    def fixed_step(self, ids_B: Tensor, lengths_B: Tensor, width: int) -> Tensor:
        """`step` where all rows read `width` columns: nothing in it but tensors depends on what the rows hold."""
        return self._logits(self._states(ids_B, lengths_B, stepping(self.rows, lengths_B, width)))

    def last_states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """Inputs of the output layer for each sequence: hidden states `[T, D]`; keys and values are not kept."""
        states: list[Tensor] = []
        with torch.autocast(self.device.type, enabled=False):
            for part in consecutive([len(ids) for ids in sequences], _CHUNK):
                counts = [len(ids) for ids in sequences[part]]
                ids = [token for ids in sequences[part] for token in ids]
                columns = [column for count in counts for column in range(count)]
                states_TD = self._states(*self._tensors(ids, columns), whole(counts, self.precision.work))
                states += self._normed(states_TD, self.norm).split(counts)
        return states

    def _tensors(self, ids: Sequence[int], columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        return torch.tensor(ids, device=self.device), torch.tensor(columns, device=self.device)

    def _states(self, ids_T: Tensor, columns_T: Tensor, read: Read) -> Tensor:
        """Hidden states `[T, D]`, before the last norm, of tokens at these columns of their rows."""
        cos, sin = self.rotary(self.norm, columns_T[None])  # which asks the first for its type alone
        cos_T1D, sin_T1D = cos[0, :, None], sin[0, :, None]
        x_TD = self.embed(ids_T).detach()
        for number, layer in enumerate(self.layers):
            normed_TD = self._normed(x_TD, layer.norm)
            queries, keys, values = (states.unflatten(-1, (-1, self.head_dim)) for states in layer.inputs(normed_TD))
            queries = self._placed(queries, layer.query_norm, cos_T1D, sin_T1D)
            keys = self._placed(keys, layer.key_norm, cos_T1D, sin_T1D)
            x_TD += layer.out(read(number, queries, keys, values))[0]
            normed_TD = self._normed(x_TD, layer.mlp_norm)
            gate, up = layer.gate_and_up(normed_TD)
            x_TD += layer.down(F.silu(gate, inplace=True).mul_(up))[0]
        return x_TD

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square layer normalisation over the last dimension."""
        return F.rms_norm(x.to(weight.dtype), [len(weight)], weight, self.eps)

    def _placed(self, x_THD: Tensor, norm: Tensor | None, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
        """Queries or keys after their norm, where they have one, and with rotary positions."""
        x = x_THD if norm is None else self._normed(x_THD, norm)
        half = x.shape[-1] // 2
        turned = x * cos_T1D
        turned[..., :half].addcmul_(x[..., half:], sin_T1D[..., :half], value=-1)
        turned[..., half:].addcmul_(x[..., :half], sin_T1D[..., half:])
        return turned.to(self.precision.stored)

    def _logits(self, states_BD: Tensor) -> Tensor:
        return self.head(self._normed(states_BD, self.norm))[0]

    def _layer(self, layer: Any) -> Layer:
        attention, mlp, precision = layer.self_attn, layer.mlp, self.precision
        query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        return Layer(
            layer.input_layernorm.weight.detach(),
            FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj], precision),
            None if query_norm is None else query_norm.weight.detach(),
            None if key_norm is None else key_norm.weight.detach(),
            FusedLinear([attention.o_proj], precision),
            layer.post_attention_layernorm.weight.detach(),
            FusedLinear([mlp.gate_proj, mlp.up_proj], precision),
            FusedLinear([mlp.down_proj], precision),
        )


def can_fuse(model: PreTrainedModel) -> bool:
    """Whether `FusedDecoder` computes what this model does: a Llama, Mistral, Qwen2 or Qwen3 with plain layers."""
    if not any(type(model).forward is kind.forward for kind in _FAMILY) or model.config.hidden_act != "silu":
        return False
    inner: Any = cast(Any, model).model
    if layer_kinds(model.config.get_text_config()) != [FULL]:
        return False
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

    A row may continue in the next chunk, which reads what the one before it wrote.
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


def consecutive(counts: Sequence[int], size: int) -> list[slice]:
    """Cut rows of so many tokens into runs of `size` tokens at most, but at least a row."""
    first, total = 0, 0
    parts: list[slice] = []
    for row, count in enumerate(counts):
        if row > first and total + count > size:
            parts.append(slice(first, row))
            first, total = row, 0
        total += count
    return [*parts, slice(first, len(counts))] if counts else []

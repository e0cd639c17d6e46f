"""Fused linear layers with their weights laid out for sampling.

On a CPU a weight is packed by oneDNN or stored by input, the order in which a matmul of a few rows reads it. On a GPU
it stays where it is: a copy would cost memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft.tuners.lora import LoraLayer
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn

from common.precision import has_fast_bfloat16
from modules.functional.linear_logprobs import float32_product


@dataclass(frozen=True, slots=True)
class Precision:
    """Number types of a forward pass, and how a CPU multiplies.

    Attributes:
        stored: of activations, and of weights before they are laid out; what a result is rounded to.
        work: what matmuls are computed in.
        packed: whether oneDNN makes them, from weights in an order of its own, in place of MKL.
    """

    stored: torch.dtype
    work: torch.dtype
    packed: bool = False

    @classmethod
    def of(cls, weight: Tensor) -> Precision:
        """That of a model with this weight: the type of autocast where that is on.

        Without fast instructions for bfloat16 a CPU multiplies in float32; bfloat16 matmuls are summed in
        float32 in any case, so only the order of the terms differs. MKL uses half of an AMD CPU's vector units.
        """
        kind = weight.device.type
        stored = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        if kind != "cpu":
            return cls(stored, stored)
        features = torch.cpu.get_capabilities()
        amd = "AMD" in features.get("cpu_name", "") and bool(features.get("avx512_f"))
        fast = has_fast_bfloat16(weight.device) and stored == torch.bfloat16
        work = torch.bfloat16 if fast else torch.float32
        packed = torch.backends.mkldnn.is_available() and (amd or work == torch.bfloat16)
        return cls(stored, work, packed)


class FusedLinear:
    """Several linear layers of one input as one matmul, each with its current adapters.

    An adapter is added to a float32 weight. In a shorter type most of it would be rounded away: there it is added to
    the matmul, rounded where autocast rounds in training, to the same bits. All adapters read it in one matmul.

    Args:
        layers: those for which `can_multiply` holds.
        precision: of the model.
        wide: float32 results, not rounded, as training has the logits of an output layer that is a matrix alone.
    """

    def __init__(self, layers: Sequence[nn.Module], precision: Precision, *, wide: bool = False) -> None:
        self.precision = precision
        self.own: list[tuple[Tensor, Tensor | None]] = []
        self.up: list[tuple[int, Tensor, float]] = []  # number of the layer; scale * down(x) @ up is added
        downs: list[Tensor] = []
        for number, layer in enumerate(layers):
            weight, bias = _own(layer)
            for down, up, scale in _adapters(layer):
                if precision.stored == torch.float32:
                    weight = weight + scale * (up.float() @ down.float())
                    continue
                downs.append(down)
                self.up.append((number, self._small(up), scale))
            bias = None if bias is None else bias.to(precision.work)
            self.own.append((_laid_out(weight.to(precision.stored).to(precision.work), precision), bias))
        self.down = self._small(torch.cat(downs)) if downs else None
        self.wide = wide and self.down is None and all(bias is None for _, bias in self.own)

    def __call__(self, x_TD: Tensor) -> list[Tensor]:
        stored, worked = self.precision.stored, x_TD.to(self.precision.work)
        results = [self._product(worked, matrix, bias) for matrix, bias in self.own]
        if self.wide:
            return [result.float() for result in results]
        results = [result.to(stored) for result in results]
        if self.down is not None:
            narrow = (worked @ self.down).to(stored).to(worked.dtype)
            parts = narrow.split([len(up) for _, up, _ in self.up], dim=-1)
            for (number, up, scale), part in zip(self.up, parts, strict=True):
                results[number] += (part @ up).to(stored).mul_(scale)
        return results

    def _product(self, worked: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        if self.precision.packed:  # what torch.compile makes of a linear layer whose weights do not change
            return torch.ops.mkldnn._linear_pointwise(worked, matrix, bias, "none", [], "")
        if self.wide:
            return float32_product(worked, matrix)
        return worked @ matrix if bias is None else torch.addmm(bias, worked, matrix)

    def _small(self, weight: Tensor) -> Tensor:
        """An adapter's matrix `[in, out]`, rounded as autocast does."""
        return weight.to(self.precision.stored).to(self.precision.work).t().contiguous()


def _laid_out(weight: Tensor, precision: Precision) -> Tensor:
    """A weight `[out, in]` as its matmul reads it: packed, or `[in, out]`, which a CPU has in memory in that order."""
    if precision.packed:
        return torch.ops.mkldnn._reorder_linear_weight(weight)
    return weight.t().contiguous() if weight.device.type == "cpu" else weight.t()


def can_multiply(layer: nn.Module) -> bool:
    """Whether `FusedLinear` computes what this layer does: a plain linear layer, or one with plain LoRA adapters."""
    if isinstance(layer, LoraLayer):
        active = [name for name in layer.active_adapters if name in layer.lora_A]
        plain = not any(layer.lora_variant.get(name) or layer.lora_bias.get(name) for name in active)
        return plain and not layer.merged and type(layer.base_layer) is nn.Linear
    if isinstance(layer, TrainableTokensWrapper):
        return isinstance(layer.original_module, nn.Linear) and layer.original_module.bias is None
    return type(layer) is nn.Linear


def _own(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight `[out, in]` and bias, without adapters; of a layer with trained tokens the weight with their rows."""
    inner: Any = layer.base_layer if isinstance(layer, LoraLayer) else layer
    return cast(Tensor, inner.weight).detach(), None if getattr(inner, "bias", None) is None else inner.bias.detach()


def _adapters(layer: nn.Module) -> list[tuple[Tensor, Tensor, float]]:
    """Down `[rank, in]`, up `[out, rank]` and scale of each adapter that counts."""
    if not isinstance(layer, LoraLayer) or layer.disable_adapters:
        return []
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    weights: Any = layer
    return [
        (weights.lora_A[name].weight.detach(), weights.lora_B[name].weight.detach(), float(layer.scaling[name]))
        for name in names
    ]

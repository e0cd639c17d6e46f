"""Products with the weights of linear layers, laid out for sampling: few calls, each over as much as possible.

On a CPU, layers that read the same input become one matrix, packed by oneDNN or stored by input, the order in which a
product of a few rows reads it. On a GPU the weights stay where they are: a copy would cost memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft.tuners.lora import LoraLayer
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Precision:
    """Number types of a forward pass, and how a CPU makes its products.

    Attributes:
        stored: of activations, and of weights before they are laid out; what a product is rounded to.
        work: what products are computed in.
        packed: whether oneDNN makes them, from weights in an order of its own, in place of MKL.
    """

    stored: torch.dtype
    work: torch.dtype
    packed: bool = False

    @classmethod
    def of(cls, weight: Tensor) -> Precision:
        """That of a model with this weight: the type of autocast where that is on.

        Without fast instructions for bfloat16 a CPU multiplies in float32; products of bfloat16 numbers are summed in
        float32 in any case, so only the order of the terms differs. MKL uses half of an AMD CPU's vector units.
        """
        kind = weight.device.type
        stored = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        if kind != "cpu":
            return cls(stored, stored)
        features = torch.cpu.get_capabilities()
        amd = "AMD" in features.get("cpu_name", "") and bool(features.get("avx512_f"))
        fast = features.get("amx_bf16") or (amd and features.get("avx512_bf16"))
        work = torch.bfloat16 if fast and stored == torch.bfloat16 else torch.float32
        packed = torch.backends.mkldnn.is_available() and (amd or work == torch.bfloat16)
        return cls(stored, work, packed)


@dataclass(frozen=True, slots=True)
class Addition:
    """What an adapter adds to some columns of a product: `scale * x @ down @ up`."""

    columns: slice
    down: Tensor
    up: Tensor
    scale: float


class Product:
    """What one or several linear layers make of the same input, side by side: `[T, in]` -> `[T, out]`.

    Adapters are added to the weights where these are in float32. In a shorter type most of what an adapter adds to a
    weight would be rounded away: there it is computed beside the product, in the adapter's own type.

    Args:
        layers: for each of which `can_multiply` holds.
        precision: of the model.
    """

    def __init__(self, layers: Sequence[nn.Module], precision: Precision) -> None:
        self.precision = precision
        self.additions: list[Addition] = []
        weights, biases, end = list[Tensor](), list[Tensor | None](), 0
        for layer in layers:
            weight, bias = _own(layer)
            start, end = end, end + len(weight)
            for down, up, scale in _adapters(layer):
                if precision.stored == torch.float32:
                    weight = weight + scale * (up.float() @ down.float())
                else:
                    self.additions.append(Addition(slice(start, end), down.t(), up.t(), scale))
            weights.append(weight.to(precision.stored))
            biases.append(None if bias is None else bias.to(precision.work))
        if weights[0].device.type == "cpu":
            biases = [_joined(biases, [len(weight) for weight in weights])]
            weights = [torch.cat(weights).to(precision.work)]
        self.matrices = [_laid_out(weight, precision) for weight in weights]
        self.biases = biases

    def __call__(self, x_TD: Tensor) -> Tensor:
        worked = x_TD.to(self.precision.work)
        multiply = _multiplied_by_onednn if self.precision.packed else _multiplied
        parts = [multiply(worked, matrix, bias) for matrix, bias in zip(self.matrices, self.biases, strict=True)]
        product = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(self.precision.stored)
        for addition in self.additions:
            added = x_TD.to(addition.down.dtype) @ addition.down @ addition.up
            product[:, addition.columns] += added * addition.scale
        return product


def _laid_out(weight: Tensor, precision: Precision) -> Tensor:
    """A weight `[out, in]` as its product reads it: packed, or `[in, out]`, which a CPU has in memory in that order."""
    if precision.packed:
        return torch.ops.mkldnn._reorder_linear_weight(weight)
    return weight.t().contiguous() if weight.device.type == "cpu" else weight.t()


def _multiplied(x_TD: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x_TD, matrix) if bias is None else torch.addmm(bias, x_TD, matrix)


def _multiplied_by_onednn(x_TD: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    # what torch.compile makes of a linear layer whose weights do not change
    return torch.ops.mkldnn._linear_pointwise(x_TD, packed, bias, "none", [], "")


def can_multiply(layer: nn.Module) -> bool:
    """Whether `Product` computes what this layer does: a plain linear layer, or one with plain LoRA adapters."""
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


def _joined(biases: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """One bias for layers side by side, 0 for a layer without."""
    like = next((bias for bias in biases if bias is not None), None)
    if like is None:
        return None
    return torch.cat([like.new_zeros(n) if bias is None else bias for bias, n in zip(biases, sizes, strict=True)])

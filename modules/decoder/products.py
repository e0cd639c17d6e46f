"""Products with the weights of linear layers, laid out for sampling.

On a CPU a weight is packed by oneDNN or stored by input, the order in which a product of a few rows reads it. On a GPU
it stays where it is: a copy would cost memory.
"""

from __future__ import annotations

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


class Product:
    """The product with a linear layer, with the adapters that it has now.

    An adapter is added to the weight where that is float32. In a shorter type most of what an adapter adds to a weight
    would be rounded away: there it is computed beside the product, in the adapter's own type.

    Args:
        layer: one for which `can_multiply` holds.
        precision: of the model.
    """

    def __init__(self, layer: nn.Module, precision: Precision) -> None:
        self.precision = precision
        self.additions: list[tuple[Tensor, Tensor, float]] = []  # scale * x @ down @ up
        weight, bias = _own(layer)
        for down, up, scale in _adapters(layer):
            if precision.stored == torch.float32:
                weight = weight + scale * (up.float() @ down.float())
            else:
                self.additions.append((down.t(), up.t(), scale))
        self.matrix = _laid_out(weight.to(precision.stored).to(precision.work), precision)
        self.bias = None if bias is None else bias.to(precision.work)

    def __call__(self, x_TD: Tensor) -> Tensor:
        worked = x_TD.to(self.precision.work)
        if self.precision.packed:  # what torch.compile makes of a linear layer whose weights do not change
            product = torch.ops.mkldnn._linear_pointwise(worked, self.matrix, self.bias, "none", [], "")
        else:
            product = worked @ self.matrix if self.bias is None else torch.addmm(self.bias, worked, self.matrix)
        product = product.to(self.precision.stored)
        for down, up, scale in self.additions:
            product += (x_TD.to(down.dtype) @ down @ up) * scale
        return product


def _laid_out(weight: Tensor, precision: Precision) -> Tensor:
    """A weight `[out, in]` as its product reads it: packed, or `[in, out]`, which a CPU has in memory in that order."""
    if precision.packed:
        return torch.ops.mkldnn._reorder_linear_weight(weight)
    return weight.t().contiguous() if weight.device.type == "cpu" else weight.t()


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

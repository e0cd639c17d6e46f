"""Products of linear layers side by side, with and without adapters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from modules.decoder.products import Precision, Product, can_multiply

FLOAT = Precision(torch.float32, torch.float32)


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return layer


def adapted(dtype: torch.dtype = torch.float32, **settings: Any) -> nn.Module:
    """A linear layer of the given type with a random float32 adapter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8).to(dtype))
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["0"], init_lora_weights=False, **settings)
    return get_peft_model(model, config).base_model.model[0].eval()  # pyright: ignore


def test_layers_stand_side_by_side() -> None:
    both = Product([linear([[1.0, 2.0]]), linear([[3.0, 4.0], [5.0, 6.0]])], FLOAT)
    assert both(torch.tensor([[1.0, 0.0], [1.0, 1.0]])).tolist() == [[1.0, 3.0, 5.0], [3.0, 7.0, 11.0]]


def test_a_layer_without_bias_beside_one_with() -> None:
    both = Product([linear([[1.0, 2.0]], [10.0]), linear([[3.0, 4.0]])], FLOAT)
    assert both(torch.tensor([[1.0, 1.0]])).tolist() == [[13.0, 7.0]]


def test_an_adapter_is_added_to_float32_weights() -> None:
    layer = adapted()
    with torch.inference_mode():
        product, x = Product([layer, linear([[1.0] * 16])], FLOAT), torch.randn(5, 16)
        assert not product.additions
        expected = torch.cat([layer(x), x.sum(-1, keepdim=True)], dim=-1)
        assert (product(x) - expected).abs().max() < 1e-5
        assert (product(x)[:, :8] - layer.base_layer(x)).abs().max() > 0.1  # pyright: ignore


def test_an_adapter_stays_beside_bfloat16_weights() -> None:
    layer, first = adapted(torch.bfloat16), nn.Linear(16, 3, bias=False).bfloat16()
    with torch.inference_mode():
        x = torch.randn(5, 16).bfloat16()
        product = Product([first, layer], Precision(torch.bfloat16, torch.float32))
        together = product(x)
        assert together.dtype == torch.bfloat16
        assert (together[:, 3:] - layer(x)).abs().max() <= 2**-6
        layer.base_layer.weight.zero_()  # pyright: ignore
        layer.base_layer.bias.zero_()  # pyright: ignore
        alone = Product([layer], Precision(torch.bfloat16, torch.float32))(x)
    assert (together[:, 3:] - alone).abs().max() > 0.1, "the layer's own weights count too"
    assert alone.abs().max() > 0.1, "and the adapter"


def test_a_disabled_adapter_does_not_count() -> None:
    layer = adapted()
    layer._disable_adapters = True  # pyright: ignore
    with torch.inference_mode():
        x = torch.randn(2, 16)
        assert (Product([layer], FLOAT)(x) - layer.base_layer(x)).abs().max() < 1e-6  # pyright: ignore


@pytest.mark.parametrize(("layer", "possible"), [
    (nn.Linear(2, 2), True), (adapted(), True), (adapted(use_dora=True), False), (nn.Bilinear(2, 2, 2), False),
])  # fmt: skip
def test_what_can_be_multiplied(layer: nn.Module, possible: bool) -> None:
    assert can_multiply(layer) is possible


def test_autocast_decides_what_is_stored() -> None:
    weight = torch.zeros(1)
    assert Precision.of(weight).stored == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert Precision.of(weight).stored == torch.bfloat16
    assert Precision.of(weight.bfloat16()).stored == torch.bfloat16


F32, B16 = torch.float32, torch.bfloat16
INTEL, AMD = {"cpu_name": "Intel Xeon", "avx512_f": True}, {"cpu_name": "AMD EPYC", "avx512_f": True}


@pytest.mark.parametrize(("features", "of_float32", "of_bfloat16"), [
    ({}, (F32, False), (F32, False)),
    (INTEL | {"avx512_bf16": True}, (F32, False), (F32, False)),
    (INTEL | {"amx_bf16": True}, (F32, False), (B16, True)),
    (AMD | {"avx512_bf16": True}, (F32, True), (B16, True)),
    (AMD | {"avx512_bf16": False}, (F32, True), (F32, True)),
    ({"cpu_name": "AMD EPYC", "avx512_f": False}, (F32, False), (F32, False)),
])  # fmt: skip
def test_the_cpu_decides_how_products_are_made(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, Any], of_float32: Any, of_bfloat16: Any
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert Precision.of(torch.zeros(1)) == Precision(F32, *of_float32)
    assert Precision.of(torch.zeros(1, dtype=B16)) == Precision(B16, *of_bfloat16)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not Precision.of(torch.zeros(1)).packed


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize(("stored", "work", "tolerance"), [(F32, F32, 1e-6), (B16, B16, 2e-2), (B16, F32, 2e-2)])
@pytest.mark.parametrize("rows", [1, 7, 65])
def test_packed_products_are_those_of_the_layers(
    stored: torch.dtype, work: torch.dtype, tolerance: float, rows: int
) -> None:
    cpu = torch.cpu.get_capabilities()
    if work == B16 and not (cpu.get("avx_ne_convert") or all(cpu.get(f"avx512_{name}") for name in ("bw", "vl", "dq"))):
        pytest.skip("oneDNN has no products in bfloat16 on this CPU")
    torch.manual_seed(0)
    layers = [nn.Linear(16, out, bias=bias, dtype=stored) for out, bias in ((24, True), (8, False))]
    x = torch.randn(rows, 16, dtype=stored)
    expected = torch.cat([layer(x) for layer in layers], dim=-1)
    with torch.inference_mode():
        made = Product(layers, Precision(stored, work, packed=True))(x)
        alone = Product(layers[1:], Precision(stored, work, packed=True))(x)
    assert made.dtype == stored
    torch.testing.assert_close(made, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(alone, expected[:, 24:], atol=tolerance, rtol=tolerance)

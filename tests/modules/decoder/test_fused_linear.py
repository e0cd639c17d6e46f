"""FusedLinear of linear layers, with and without adapters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from modules.decoder.fused_linear import FusedLinear, Precision, can_multiply

FLOAT = Precision(torch.float32, torch.float32)


def product(layer: nn.Module, x: torch.Tensor, precision: Precision = FLOAT) -> torch.Tensor:
    return FusedLinear([layer], precision)(x)[0]


def adapted(dtype: torch.dtype = torch.float32, **settings: Any) -> nn.Module:
    """A linear layer of the given type with a random float32 adapter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8).to(dtype))
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["0"], init_lora_weights=False, **settings)
    return get_peft_model(model, config).base_model.model[0].eval()  # pyright: ignore


@pytest.mark.parametrize("bias", [True, False])
def test_a_plain_layer(bias: bool) -> None:
    layer, x = nn.Linear(16, 8, bias=bias), torch.randn(5, 16)
    with torch.inference_mode():
        assert torch.allclose(product(layer, x), layer(x), atol=1e-6)


def test_an_adapter_is_added_to_float32_weights() -> None:
    layer: Any = adapted()
    with torch.inference_mode():
        x = torch.randn(5, 16)
        assert FusedLinear([layer], FLOAT).down is None
        assert (product(layer, x) - layer(x)).abs().max() < 1e-5
        assert (product(layer, x) - layer.base_layer(x)).abs().max() > 0.1


def test_an_adapter_stays_beside_bfloat16_weights() -> None:
    layer: Any = adapted(torch.bfloat16)
    precision = Precision(torch.bfloat16, torch.float32)
    with torch.inference_mode():
        x = torch.randn(5, 16).bfloat16()
        whole = product(layer, x, precision)
        assert whole.dtype == torch.bfloat16
        assert (whole - layer(x)).abs().max() <= 2**-6
        layer.base_layer.weight.zero_()
        layer.base_layer.bias.zero_()
        alone = product(layer, x, precision)
    assert (whole - alone).abs().max() > 0.1, "the layer's own weights count too"
    assert alone.abs().max() > 0.1, "and the adapter"


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("alpha", [8, 6])  # counts twice, or one and a half times
def test_adapters_are_rounded_where_autocast_rounds_in_training(device: str, alpha: int) -> None:
    """Weights and inputs of few bits have exact sums, whatever their order: only the roundings can differ."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(64, size, bias=False).bfloat16() for size in (48, 32, 32)])
    holder = nn.ModuleDict({"layers": model})
    config = LoraConfig(r=4, lora_alpha=alpha, target_modules=["0", "1", "2"], init_lora_weights=False)
    get_peft_model(holder, config)  # pyright: ignore
    with torch.no_grad():
        for weight in holder.parameters():
            weight.copy_(torch.randint(-8, 9, weight.shape) / 8)
    layers: list[Any] = list(holder.to(device)["layers"])  # pyright: ignore
    x = (torch.randint(-32, 33, (20, 64), device=device) / 32).bfloat16()
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16):
        trained = [layer(x) for layer in layers]
        precision = Precision.of(layers[0].base_layer.weight)
    with torch.inference_mode():
        sampled = FusedLinear(layers, precision)(x)
        plain = [layer.base_layer(x) for layer in layers]
    for own, other, base in zip(sampled, trained, plain, strict=True):
        assert own.dtype == other.dtype == torch.bfloat16
        assert own.equal(other)
        assert not own.equal(base)


@pytest.mark.parametrize("device", DEVICES)
def test_wide_results_are_those_of_the_accumulator(device: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(256, 50, bias=False, dtype=torch.bfloat16, device=device)
    precision = Precision.of(layer.weight)
    if device == "cpu" and precision.work == torch.bfloat16:
        pytest.skip("this CPU rounds the results of its fast products")
    x = torch.randn(5, 256, device=device).mul_(20).bfloat16()
    with torch.inference_mode():
        [wide] = FusedLinear([layer], precision, wide=True)(x)
        [rounded] = FusedLinear([layer], precision)(x)
    exact = x.double() @ layer.weight.double().t()
    assert wide.dtype == torch.float32
    assert (wide - exact).abs().max() < 1e-4
    assert (rounded - exact).abs().max() > 1e-2


def test_a_disabled_adapter_does_not_count() -> None:
    layer: Any = adapted()
    layer._disable_adapters = True
    with torch.inference_mode():
        x = torch.randn(2, 16)
        assert (product(layer, x) - layer.base_layer(x)).abs().max() < 1e-6


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
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_are_those_of_the_layer(
    stored: torch.dtype, work: torch.dtype, tolerance: float, bias: bool
) -> None:
    cpu = torch.cpu.get_capabilities()
    if work == B16 and not (cpu.get("avx_ne_convert") or all(cpu.get(f"avx512_{name}") for name in ("bw", "vl", "dq"))):
        pytest.skip("oneDNN has no products in bfloat16 on this CPU")
    torch.manual_seed(0)
    layer = nn.Linear(16, 24, bias=bias, dtype=stored)
    with torch.inference_mode():
        for rows in (1, 7, 65):
            x = torch.randn(rows, 16, dtype=stored)
            made = product(layer, x, Precision(stored, work, packed=True))
            assert made.dtype == stored
            torch.testing.assert_close(made, layer(x), atol=tolerance, rtol=tolerance)

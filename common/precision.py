"""Number types of weights and arithmetic; `auto` is bfloat16 where the device multiplies it fast, else float32."""

from __future__ import annotations

from typing import Literal

import torch

Dtype = Literal["float32", "bfloat16", "float16"]
ChosenDtype = Literal["auto", Dtype]


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether it multiplies bfloat16 numbers faster than float32; of CPUs few do, and others are six times slower."""
    features = torch.cpu.get_capabilities()
    amd = "AMD" in features.get("cpu_name", "") and features.get("avx512_bf16")
    return device.type != "cpu" or bool(features.get("amx_bf16") or amd)


def chosen_dtype(dtype: ChosenDtype, device: torch.device) -> torch.dtype:
    """The type that weights on this device get."""
    if dtype == "auto":
        return torch.bfloat16 if has_fast_bfloat16(device) else torch.float32
    return getattr(torch, dtype)


def chosen_precision(precision: str | None, device: torch.device) -> str | None:
    """The Trainer's `precision`: `auto` is `bf16-mixed` or `32-true`, any other setting stays."""
    if precision == "auto":
        return "bf16-mixed" if has_fast_bfloat16(device) else "32-true"
    return precision

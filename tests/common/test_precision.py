from __future__ import annotations

import pytest
import torch

from common.precision import chosen_dtype, chosen_precision, has_fast_bfloat16

CPU = torch.device("cpu")
PROCESSORS = [
    ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, True),
    ({"cpu_name": "AMD EPYC", "avx2": True}, False),
    ({"cpu_name": "Intel Xeon", "avx512_bf16": True}, False),  # without AMX it gains nothing
    ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
    ({}, False),
]


@pytest.mark.parametrize(("features", "fast"), PROCESSORS)
def test_auto_is_bfloat16_where_the_processor_multiplies_it_fast(
    features: dict[str, object], fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert has_fast_bfloat16(CPU) is fast
    assert chosen_dtype("auto", CPU) == (torch.bfloat16 if fast else torch.float32)
    assert chosen_precision("auto", CPU) == ("bf16-mixed" if fast else "32-true")


def test_a_gpu_multiplies_it_fast_and_what_is_named_stays() -> None:
    gpu = torch.device("cuda", 0)
    assert (chosen_dtype("auto", gpu), chosen_precision("auto", gpu)) == (torch.bfloat16, "bf16-mixed")
    assert chosen_dtype("float16", CPU) == torch.float16
    for given in (None, "bf16-mixed", "32-true"):
        assert chosen_precision(given, CPU) == given

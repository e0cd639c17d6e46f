"""The table of docs/models.md: what works is equal to a plain forward pass of each row, all else is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import Tensor

from benchmarks.families import FAMILIES, line
from modules.decoder import attention_masks

REFUSED = {
    "llama, dynamic RoPE beyond": "llama: it has dynamic rotary positions, which .* beyond 40 tokens",
    "phi3, LongRoPE beyond": "phi3: it has LongRoPE positions, which .* beyond 40 tokens",
    "gpt_neo": r"GPTNeoForCausalLM \(gpt_neo\) has layers of local",
    "bloom": r"rows of BloomForCausalLM \(bloom\)",
    "falcon, ALiBi": r"rows of FalconForCausalLM \(falcon\)",
    "deepseek_v3": "keys and values differ in shape between its layers",
    "hyperclovax, scaled logits": r"HyperCLOVAXForCausalLM \(hyperclovax\) changes its logits after the output layer",
    "mamba": r"MambaForCausalLM \(mamba\) has layers of linear_attention",
    "rwkv": r"rows of RwkvForCausalLM \(rwkv\)",
    "jamba": r"JambaForCausalLM \(jamba\) has layers of linear_attention",
    "qwen3_next": r"Qwen3NextForCausalLM \(qwen3_next\) has layers of linear_attention",
    "bert": r"BertLMHeadModel \(bert\) gives other log-probs",
    "bart": r"BartForCausalLM \(bart\) gives other logits",
}
FAST = (
    "qwen3", "mistral, window", "qwen2, window", "gemma2", "gemma3_text", "smollm3", "phi3, window",
    "phi3, LongRoPE within its original context", "gpt2", "mixtral", "granite", "cohere", "falcon",
)  # fmt: skip


def assert_equal(family: str) -> None:
    row = line(family, *FAMILIES[family])
    assert row["refused"] is None
    assert row["greedy"] == "equal"
    assert max(row[column] for column in ("alone", "among 16", "SFT", "GRPO")) < 1e-4


@pytest.mark.parametrize("family", FAST)
def test_log_probs_are_those_of_a_plain_forward_pass(family: str) -> None:
    assert_equal(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(FAST) - set(REFUSED)))
def test_so_are_those_of_every_other_family(family: str) -> None:
    assert_equal(family)


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_would_differ_is_refused_in_one_line(family: str) -> None:
    row = line(family, *FAMILIES[family])
    assert re.search(REFUSED[family], row["refused"])
    assert FAMILIES[family][0] in row["refused"]
    assert "\n" not in row["refused"]


def test_a_window_that_is_not_masked_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(config: Any, kind: str, own: Tensor, read: Tensor) -> Tensor:
        return read <= own

    monkeypatch.setattr(attention_masks, "_attended", whole)
    kind, settings = FAMILIES["gemma2"]
    row = line("gemma2", kind, settings | {"sliding_window": 16})  # longer than the rows of the try at load
    assert max(row["alone"], row["among 16"]) > 0.01
    assert max(row["SFT"], row["GRPO"]) < 1e-4

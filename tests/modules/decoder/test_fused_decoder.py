"""The decoder made for sampling gives the logits of the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from modules.decoder import fused_decoder
from modules.decoder.fused_decoder import FusedDecoder, can_fuse, chunks, consecutive
from modules.decoder.library_decoder import LibraryDecoder
from modules.lora import LoRA
from modules.policy import Policy
from tests.tiny import byte_tokenizer

SIZE: dict[str, Any] = {
    "vocab_size": 270, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256,
}  # fmt: skip
LENGTHS = (3, 19, 7, 12)  # of the rows at the end
IDS = [[(31 * row + 7 * column) % 250 for column in range(n)] for row, n in enumerate(LENGTHS)]


def made(kind: type, config: type, **settings: Any) -> PreTrainedModel:
    """A random model, its norms and biases random too."""
    torch.manual_seed(1)
    model = kind(config(**SIZE | settings)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) / 3)
            elif "embed" not in name:
                weight.mul_(4)
    return model


def qwen3(**settings: Any) -> PreTrainedModel:
    return made(Qwen3ForCausalLM, Qwen3Config, **{"head_dim": 8} | settings)


@torch.inference_mode()
def decoded(decoder: FusedDecoder | LibraryDecoder) -> Tensor:
    """Logits after the last token of each row: most is read in two parts, the last two tokens are steps."""
    decoder.rows.reserve(len(IDS), max(LENGTHS), ())
    halves = [n // 2 for n in LENGTHS]
    decoder.read(0, [ids[:half] for ids, half in zip(IDS, halves, strict=True)], [0] * len(IDS))
    decoder.read(0, [ids[half:-1] or ids[-2:-1] for ids, half in zip(IDS, halves, strict=True)], [
        min(half, n - 2) for half, n in zip(halves, LENGTHS, strict=True)
    ])  # fmt: skip
    lengths = [n - 1 for n in LENGTHS]
    return decoder.step(torch.tensor([ids[-1] for ids in IDS]), torch.tensor(lengths), lengths).float()


@torch.inference_mode()
def expected(model: PreTrainedModel, rows: Sequence[Sequence[int]] = IDS) -> Tensor:
    """The model's own logits after each row, alone."""
    return torch.stack([model(torch.tensor([ids])).logits[0, -1] for ids in rows]).float()


@pytest.mark.parametrize(
    "model",
    [
        made(LlamaForCausalLM, LlamaConfig, attention_bias=True, mlp_bias=True),
        made(LlamaForCausalLM, LlamaConfig, rope_parameters={
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8,
        }),
        made(MistralForCausalLM, MistralConfig, sliding_window=None),
        made(Qwen2ForCausalLM, Qwen2Config),
        qwen3(tie_word_embeddings=True),
        made(LlamaForCausalLM, LlamaConfig, head_dim=32, num_key_value_heads=1),
    ],
    ids=["llama-bias", "llama3-rope", "mistral", "qwen2", "qwen3", "llama-one-key-head"],
)  # fmt: skip
@pytest.mark.parametrize("size", [5, 512])
def test_logits_are_the_models_own(model: PreTrainedModel, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_decoder, "_CHUNK", size)
    own = expected(model)
    assert own.std() > 0.1
    assert (decoded(FusedDecoder(model)) - own).abs().max() < 1e-4
    if size == 512:
        assert (decoded(LibraryDecoder(model)) - own).abs().max() < 1e-4


@pytest.mark.parametrize("size", [5, 20, 512])
def test_last_states_are_the_models_own(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_decoder, "_CHUNK", size)
    model = qwen3(tie_word_embeddings=True)
    with torch.inference_mode():
        ours = FusedDecoder(model).last_states(IDS)
        for ids, states in zip(IDS, ours, strict=True):
            own = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
            assert own.std() > 0.1
            assert states.shape == own.shape
            assert (states - own).abs().max() < 1e-4


def errors(model: PreTrainedModel, exact: Sequence[Tensor]) -> tuple[float, float]:
    """Mean error of the last hidden states, of the decoder and of the model itself."""
    with torch.inference_mode():
        ours = FusedDecoder(model).last_states(IDS)
        own = [model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0] for ids in IDS]
    means = (torch.cat([*states]).double() - torch.cat([*exact]).double() for states in (ours, own))
    mine, models = (float(mean.abs().mean()) for mean in means)
    return mine, models


@pytest.mark.parametrize("kind", [LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM])
def test_last_states_in_bfloat16_and_under_autocast_are_as_close_as_the_models(kind: type) -> None:
    config = {LlamaForCausalLM: LlamaConfig, Qwen2ForCausalLM: Qwen2Config, Qwen3ForCausalLM: Qwen3Config}[kind]
    model = made(kind, config)
    with torch.inference_mode():
        exact = FusedDecoder(model).last_states(IDS)
    assert max(errors(model, exact)) < 1e-5
    with torch.autocast("cpu", torch.bfloat16):
        mine, models = errors(model, exact)
    assert 0 < mine < 1.5 * models
    mine, models = errors(cast(PreTrainedModel, model.to(torch.bfloat16)), exact)
    assert 0 < mine < 1.5 * models


def test_last_states_have_adapters_added() -> None:
    model, tokenizer = qwen3(), byte_tokenizer()
    with torch.inference_mode():
        before = FusedDecoder(model).last_states(IDS)
    LoRA(r=4).apply(Policy(model, tokenizer))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(torch.randn_like(weight) / 10)
    model.eval()
    with torch.inference_mode():
        after = FusedDecoder(model).last_states(IDS)
    assert (torch.cat(after) - torch.cat(before)).abs().max() > 0.1
    assert max(errors(model, after)) < 1e-3


def test_a_step_of_a_bfloat16_model_takes_another_default_type() -> None:
    """Lightning's `bf16-true` makes new tensors bfloat16."""
    model = cast(PreTrainedModel, qwen3().to(torch.bfloat16))
    expected = decoded(FusedDecoder(model))
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(decoded(FusedDecoder(model)), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_bfloat16_model_is_computed_as_closely_as_by_the_library() -> None:
    model = qwen3()
    exact = expected(model)
    model.to(torch.bfloat16)
    library = (expected(model) - exact).abs().mean()
    assert (decoded(FusedDecoder(model)) - exact).abs().mean() < 1.5 * library


@pytest.mark.parametrize("decoder", [FusedDecoder, LibraryDecoder])
def test_autocast_is_computed_as_closely_as_by_the_model(decoder: type) -> None:
    for model in (qwen3(), made(LlamaForCausalLM, LlamaConfig)):
        exact = expected(model)
        with torch.autocast("cpu", torch.bfloat16):
            own, ours = expected(model), decoded(decoder(model))
        assert 0 < (ours - exact).abs().mean() < 1.5 * (own - exact).abs().mean()


@pytest.mark.parametrize("tied", [True, False])
def test_adapters_count_and_so_do_the_rows_of_trained_tokens(tied: bool) -> None:
    model, tokenizer = qwen3(tie_word_embeddings=tied), byte_tokenizer()
    before = expected(model)
    LoRA(r=4).apply(Policy(model, tokenizer))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name or "trainable_tokens_delta" in name:
                weight.add_(torch.randn_like(weight) / 10)
    model.eval()
    assert can_fuse(model)
    own = expected(model)
    assert (own - before).abs().max() > 0.1
    special = tokenizer.all_special_ids[-1]
    assert (own - before)[:, special].abs().max() > 0.01
    assert (decoded(FusedDecoder(model)) - own).abs().max() < 1e-3


@pytest.mark.parametrize(
    "model",
    [
        qwen3(hidden_act="gelu"),
        made(MistralForCausalLM, MistralConfig, sliding_window=16),
        qwen3(use_sliding_window=True, sliding_window=16, max_window_layers=1),
        made(LlamaForCausalLM, LlamaConfig, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    ],
    ids=["gelu", "window", "windows-of-some-layers", "dynamic-rope"],
)
def test_what_it_does_not_compute_is_left_to_the_library(model: PreTrainedModel) -> None:
    assert not can_fuse(model)


def test_embeddings_with_adapters_are_left_to_the_library() -> None:
    model = qwen3()
    get_peft_model(model, LoraConfig(target_modules=["q_proj", "embed_tokens"]))
    assert not can_fuse(model)


def test_rows_are_cut_into_chunks_of_equal_size() -> None:
    assert chunks([3, 4, 2], 4) == [[(0, 0, 3), (1, 0, 1)], [(1, 1, 4), (2, 0, 1)], [(2, 1, 2)]]


def test_rows_stay_whole_in_runs_of_limited_size() -> None:
    assert consecutive([3, 4, 2, 9, 1], 7) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    assert consecutive([], 7) == []

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch.nn import Dropout
from transformers import AutoModelForCausalLM, BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

from common.errors import ConfigError
from envs.types import Limits
from modules.lora import LoRA
from modules.policy import Policy, check_policy, load_policy, random_policy
from tests.tiny import byte_tokenizer, tiny_policy

IDS = torch.arange(5)[None]


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(IDS).logits


def test_what_is_saved_loads_with_the_same_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy(byte_tokenizer())
    policy.save(tmp_path)
    loaded = load_policy(str(tmp_path), device="cpu")
    assert torch.equal(logits(loaded), logits(policy))
    assert loaded.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    assert load_policy(str(tmp_path), dtype="bfloat16").model.dtype == torch.bfloat16
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert load_policy(str(tmp_path), dtype="auto", device="cpu").model.dtype == torch.bfloat16


def test_policies_are_loaded_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_policy(byte_tokenizer()).save(tmp_path)
    load, both, met = AutoModelForCausalLM.from_pretrained, Barrier(2), []

    def late(*args: Any, **kwargs: Any) -> Any:
        """Loads when the other thread does too, or after a while."""
        with suppress(BrokenBarrierError):
            both.wait(0.5)
            met.append(True)
        return load(*args, **kwargs)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", late)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: load_policy(str(tmp_path), device="cpu"), range(2)))
    assert not met


def test_an_adapter_trained_with_new_tokens_loads_on_its_base(tmp_path: Path) -> None:
    base = tiny_policy(byte_tokenizer(tags=()))
    base.save(tmp_path / "base")
    trained = load_policy(str(tmp_path / "base"), device="cpu")
    trained.tokenizer.add_special_tokens({"additional_special_tokens": ["<new>"]})
    trained.model.resize_token_embeddings(len(trained.tokenizer))
    new = trained.tokenizer.convert_tokens_to_ids("<new>")
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, trainable_token_indices=[new])
    trained.model.add_adapter(config)
    trained.save(tmp_path / "adapter")
    loaded = load_policy(str(tmp_path / "base"), adapter=tmp_path / "adapter", device="cpu")
    assert torch.allclose(logits(loaded), logits(trained), atol=1e-6)
    assert not torch.allclose(logits(loaded)[..., : len(base.tokenizer)], logits(base), atol=1e-3)


@pytest.mark.parametrize(
    ("begin_as", "message"),
    [
        ({"<a>": ""}, r"has no tokens for '', as which the new token '<a>' would begin: give another text in begin_as"),
        ({"<b>": "a"}, "begin_as names '<b>', which is no new token; new ones are <a>"),
    ],
)
def test_a_new_token_begins_as_something(tmp_path: Path, begin_as: dict[str, str], message: str) -> None:
    tiny_policy(byte_tokenizer(tags=())).save(tmp_path / "base")
    byte_tokenizer(tags=("<a>",)).save_pretrained(str(tmp_path / "tagged"))
    with pytest.raises(ConfigError, match=message):
        load_policy(str(tmp_path / "base"), tokenizer=tmp_path / "tagged", begin_as=begin_as, device="cpu")


def test_an_adapter_has_its_own_tokenizer(tmp_path: Path) -> None:
    policy = tiny_policy(byte_tokenizer())
    policy.save(tmp_path / "base")
    policy.model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]))
    policy.save(tmp_path / "adapter")
    byte_tokenizer(tags=("<a>",)).save_pretrained(str(tmp_path / "tagged"))
    with pytest.raises(ConfigError, match=r"the tokenizer is that of the adapter .*, so `tokenizer` must be left out"):
        load_policy(str(tmp_path / "base"), adapter=tmp_path / "adapter", tokenizer=tmp_path / "tagged", device="cpu")


def test_a_missing_model_or_adapter_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy .*none: no such folder; `make models` fills models/"):
        load_policy(str(tmp_path / "none"))
    tiny_policy(byte_tokenizer()).save(tmp_path / "base")
    with pytest.raises(ConfigError, match=r"tokenizer .*empty: no such folder"):
        load_policy(str(tmp_path / "base"), adapter=tmp_path / "empty")


def test_a_device_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cannot put the model on device 'tpux'") as caught:
        random_policy(tmp_path, hidden_size=16, heads=2, layers=1, device="tpux")
    assert "\n" not in str(caught.value)


def test_a_random_policy_is_a_function_of_its_seed_and_leaves_the_global_generator(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, again = (random_policy(tmp_path, hidden_size=16, heads=2, layers=1, device="cpu") for _ in range(2))
    other = random_policy(tmp_path, hidden_size=16, heads=2, layers=1, seed=1, device="cpu")
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(logits(first), logits(again))
    assert not torch.equal(logits(first), logits(other))


def test_a_policy_has_no_dropout_of_its_own_but_that_of_an_adapter() -> None:
    config = GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = GPT2LMHeadModel(config)
    assert config.resid_pdrop == 0.1
    policy = Policy(model.train(), byte_tokenizer())
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, model(IDS).logits)
    assert config.resid_pdrop == config.attn_pdrop == config.embd_pdrop == 0.0
    tuned = tiny_policy(byte_tokenizer())
    LoRA(r=2, dropout=0.5).apply(tuned)
    rates = {
        module.p for module in Policy(tuned.model, policy.tokenizer).model.modules() if isinstance(module, Dropout)
    }
    assert rates == {0.5}


def test_limits_past_the_context_at_which_positions_change_are_refused() -> None:
    policy = tiny_policy(byte_tokenizer())
    protocol = SimpleNamespace(codec=SimpleNamespace(tokenizer=policy.tokenizer))
    check_policy(policy, protocol, Limits(total_tokens=4096))  # type: ignore[arg-type]
    policy.model.config.rope_parameters = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 512,
    }  # fmt: skip
    check_policy(policy, protocol, Limits(total_tokens=512))  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"total_tokens is 513, but qwen3 has LongRoPE .* 512 tokens: set it to 512 at"
    ):
        check_policy(policy, protocol, Limits(total_tokens=513))  # type: ignore[arg-type]


def test_a_model_that_is_no_causal_language_model_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    BertLMHeadModel(BertConfig(**sizes, intermediate_size=48, initializer_range=0.5)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"BertLMHeadModel \(bert\) gives other log-probs"):
        load_policy(str(tmp_path), device="cpu")


def test_a_model_that_lacks_weights_is_refused_and_not_begun_at_random(tmp_path: Path) -> None:
    tiny_policy(byte_tokenizer()).save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = "model.layers.0.mlp.up_proj.weight"
    save_file(
        {name: w for name, w in weights.items() if name != lost}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ConfigError, match=f"lacks 1 weights, such as {lost}, which would be random"):
        load_policy(str(tmp_path), device="cpu")


def test_whatever_the_library_raises_for_a_model_is_one_line(tmp_path: Path) -> None:
    tiny_policy(byte_tokenizer()).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": "four"}))
    with pytest.raises(ConfigError, match="no causal language model at"):
        load_policy(str(tmp_path), device="cpu")

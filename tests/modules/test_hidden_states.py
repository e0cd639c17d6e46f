"""A model read at its last hidden states: log-probs and gradients are those of whole logits, for any output layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import Qwen3ForCausalLM

from common.errors import ConfigError
from envs.packing import PackedSequence, SequenceBatch, collate
from modules.functional import linear_logprobs
from modules.functional.logprobs import token_entropy, token_logprobs
from modules.hidden_states import read_states
from modules.lora import LoRA, adapters_disabled
from modules.policy import Policy
from modules.sequence_logprobs import logprobs_and_entropy
from modules.sharding import shard
from tests.tiny import byte_tokenizer, tiny_policy

TEMPERATURE = 0.7


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens at a time, however small the vocabulary."""
    monkeypatch.setattr(linear_logprobs, "_LEAST", 1)
    monkeypatch.setattr(linear_logprobs, "_TOKENS", 1)


def batch() -> SequenceBatch:
    """Two rows of different lengths; about half of their tokens are trained, the first of the second row among them."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        PackedSequence(
            torch.randint(200, (length,), generator=generator).int(),
            torch.rand(length, generator=generator) < 0.5,
            torch.zeros(length, dtype=torch.int16),
            torch.zeros(length),
        )
        for length in (23, 9)
    ]
    rows[1].loss_mask_T[0] = True
    return collate(rows)


def policy(tied: bool = False) -> Policy:
    made = tiny_policy(byte_tokenizer(), scale=3.0)
    if tied:
        made.model.config.tie_word_embeddings = True
        made.model.tie_weights()
    return made


def whole(model: Any, given: SequenceBatch) -> tuple[Tensor, Tensor]:
    """The same from whole logits; 0 where nothing is trained or nothing predicts."""
    logits = model(input_ids=given.ids_BT).logits[:, :-1]
    mask = given.loss_mask_BT[:, 1:]
    logps = token_logprobs(logits, given.ids_BT[:, 1:], TEMPERATURE) * mask
    entropy = token_entropy(logits, TEMPERATURE) * mask
    return tuple(nn.functional.pad(values, (1, 0)) for values in (logps, entropy))  # type: ignore[return-value]


def loss_and_gradients(model: Any, ask: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logps, entropy = ask(model, batch())
    (logps.sum() - 0.3 * entropy.sum()).backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    gradients = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in found.items()}
    return logps.detach(), entropy.detach(), {name: one.clone() for name, one in gradients.items()}


def ours(model: Any, given: SequenceBatch) -> tuple[Tensor, Tensor]:
    return logprobs_and_entropy(model, given, TEMPERATURE)


def assert_same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert torch.allclose(found[0], expected[0], atol=1e-4)
    assert torch.allclose(found[1], expected[1], atol=1e-4)
    assert found[2].keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        assert torch.allclose(found[2][name], gradient, atol=1e-4), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["plain", "checkpointing", "adapters", "adapters of the head", "bias"])
def test_log_probs_entropies_and_gradients_are_those_of_whole_logits(kind: str, tied: bool) -> None:
    made = policy(tied)
    if kind == "checkpointing":
        made.model.gradient_checkpointing_enable({"use_reentrant": False})
        made.model.train()
    if kind == "adapters":
        LoRA(r=2).apply(made)  # the rows of new tokens train, too
    if kind == "adapters of the head" and not tied:
        LoRA(r=2, targets=["lm_head"], trainable_tokens=False).apply(made)
    if kind == "bias":
        made.model.lm_head.bias = nn.Parameter(torch.linspace(-1, 1, made.model.config.vocab_size))
    expected = loss_and_gradients(made.model, whole)
    assert_same(loss_and_gradients(made.model, ours), expected)
    assert max(float(gradient.abs().max()) for gradient in expected[2].values()) > 0.1


def test_with_adapters_disabled_it_is_the_base() -> None:
    made = policy()
    base = ours(made.model, batch())[0].detach()
    LoRA(r=2).apply(made)
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "lora_B" in name or "trainable_tokens_delta" in name:
                parameter += 0.1
        assert not torch.allclose(ours(made.model, batch())[0], base, atol=1e-2)
        with adapters_disabled(made.model):
            assert torch.allclose(ours(made.model, batch())[0], base, atol=1e-5)


def test_it_reads_the_last_hidden_states_and_keeps_neither_a_cache_nor_those_of_other_layers() -> None:
    made, outputs = policy(), []
    hook = made.model.register_forward_hook(lambda _, __, output: outputs.append(output))
    states = read_states(made.model, batch().ids_BT, lambda hidden_BTD: hidden_BTD)
    hook.remove()
    assert outputs[0].past_key_values is None
    assert outputs[0].hidden_states is None
    with torch.no_grad():
        expected = made.model(input_ids=batch().ids_BT, output_hidden_states=True).hidden_states[-1]
    assert torch.allclose(states, expected, atol=1e-5)


def test_the_output_layer_is_itself_again_also_after_an_error() -> None:
    made = policy()
    before = made.model(input_ids=batch().ids_BT).logits

    def fail(_: Tensor) -> Tensor:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        read_states(made.model, batch().ids_BT, fail)
    assert torch.equal(made.model(input_ids=batch().ids_BT).logits, before)


class Capped(Qwen3ForCausalLM):
    """A model with a soft cap on its logits."""

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        output = super().forward(*arguments, **settings)
        output.logits = 30 * torch.tanh(output.logits / 30)
        return output


def test_a_model_that_changes_its_logits_is_refused() -> None:
    model = Capped(policy().model.config)
    with pytest.raises(ConfigError, match=r"Capped \(qwen3\) changes its logits after the output layer"):
        read_states(model, batch().ids_BT, lambda hidden_BTD: hidden_BTD.sum(dim=-1))


@contextmanager
def one_rank(folder: Path) -> Iterator[Any]:
    """The mesh of a process group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("reshard", [False, True])
def test_sharded_parameters_are_gathered_for_the_output_layer_and_get_their_gradients(
    tmp_path: Path, tied: bool, reshard: bool
) -> None:
    expected = loss_and_gradients(policy(tied).model, whole)
    sharded = policy(tied).model
    with one_rank(tmp_path) as mesh:
        shard(sharded, mesh)
        sharded.set_reshard_after_forward(reshard, recurse=False)  # type: ignore[operator]
        assert_same(loss_and_gradients(sharded, ours), expected)

"""GRPO's frozen reference: what it is with and without adapters, and what it does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from common.errors import ConfigError
from envs.packing import SequenceBatch
from modules.lora import LoRA
from modules.reference import reference_logprobs
from modules.sequence_logprobs import sequence_logprobs
from tests.toy_grpo import TEMPERATURE, changed, module, packed, step
from tests.toy_rl import small_policy


@pytest.fixture(scope="module")
def batch() -> SequenceBatch:
    return packed()


@pytest.mark.parametrize("trainable_tokens", [False, True])
def test_with_adapters_the_reference_is_their_base_and_no_second_model(
    batch: SequenceBatch, trainable_tokens: bool
) -> None:
    """To the bit what a frozen copy gives, in a loss whose gradient is the same, dropout and checkpointing on."""
    copied, shared = small_policy(), small_policy()
    lora = LoRA(r=2, dropout=0.2, trainable_tokens=trainable_tokens)
    settings: dict[str, Any] = {"kl_weight": 0.5, "lora": lora, "gradient_checkpointing": True}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one = module(copied, reference=small_policy(), **settings)
        torch.manual_seed(0)
        other = module(shared, reference=shared, **settings)
    for made in (one, other):
        with torch.no_grad():
            for parameter in made.model.parameters():
                parameter.add_(0.02 * parameter.requires_grad)
    assert one.reference is not None
    assert other.reference is not None
    assert other.reference.model is other.model
    expected = reference_logprobs(one.reference, one.model, batch, one.temperature)
    assert torch.equal(reference_logprobs(other.reference, other.model, batch, other.temperature), expected)
    results = []
    for made in (one, other):
        torch.manual_seed(1)
        results.append(step(made, batch))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(gradient, results[1][1][name]) for name, gradient in results[0][1].items())
    assert one.logged["kl"] == other.logged["kl"] > 1e-4  # pyright: ignore


def test_a_policy_that_has_adapters_already_keeps_a_copy_as_its_reference() -> None:
    """Without its adapters it would be another policy than the one that training begins with."""
    policy = small_policy()
    LoRA(r=2).apply(policy)
    made = module(policy, reference=policy, kl_weight=0.5)
    assert made.reference is not None
    assert made.reference.model is not made.model


def test_a_reference_of_another_tokenizer_is_refused() -> None:
    other = small_policy(seed=5)
    other.tokenizer = copy.deepcopy(other.tokenizer)
    other.tokenizer.add_tokens(["another"])
    with pytest.raises(ConfigError, match="reference and policy have different tokenizers"):
        module(small_policy(), kl_weight=0.5, reference=other)


def test_the_reference_pulls_the_policy_back(batch: SequenceBatch) -> None:
    still = changed(batch, advantages=torch.zeros_like(batch.logps_BT))
    drifted, anchor = small_policy(seed=5), small_policy()
    free = step(module(drifted), still)
    held = step(module(drifted, kl_weight=0.5, reference=anchor), still)
    assert free[0] == 0
    with torch.no_grad():
        gap = sequence_logprobs(anchor.model, batch, TEMPERATURE) - sequence_logprobs(drifted.model, batch, TEMPERATURE)
    assert held[0] == pytest.approx(0.5 * float((gap.exp() - 1 - gap).sum()), rel=1e-4)
    assert any(gradient.abs().max() > 0 for gradient in held[1].values())


def test_a_reference_that_is_the_policy_stays_behind_when_it_moves(batch: SequenceBatch) -> None:
    """Equal components of a config are one object; a reference that moved along would never pull."""
    policy = small_policy()
    made = module(policy, kl_weight=0.5, reference=policy)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.mul_(1.1)
    step(made, batch)
    assert made.logged["kl"] > 1e-4  # pyright: ignore
    assert made.reference is not None
    assert not any(parameter.requires_grad for parameter in made.reference.model.parameters())
    assert all("reference" not in name for name in made.state_dict()), "it is in no checkpoint"

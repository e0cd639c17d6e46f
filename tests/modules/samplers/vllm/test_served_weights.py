"""Weights that sample are told from those of one step before, exactly in float32, else by where the change leads."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from common.errors import EngineError
from common.precision import Dtype
from envs.sampling import take_turns
from modules.lora import LoRA
from modules.policy import Policy
from modules.samplers.vllm.client import Generated
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler
from modules.samplers.vllm.served_weights import WeightProof
from tests.modules.samplers.vllm.test_sampler import asked
from tests.toy_rl import small_policy
from tests.vllm_server import vllm_server


def step(policy: Policy, lr: float) -> None:
    """One step of AdamW towards other tokens."""
    trained = [one for one in policy.model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr)
    ids = torch.arange(12)[None]
    policy.model(ids).logits.log_softmax(-1)[..., 3].mean().neg().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(("dtype", "lr"), [("float32", 1e-3), ("bfloat16", 2e-3)])
@pytest.mark.parametrize("adapters", ["none", "merged", "alone"])
def test_weights_that_are_one_step_old_end_the_run(tmp_path: Path, dtype: Dtype, lr: float, adapters: str) -> None:
    policy, alone = small_policy(), adapters == "alone"
    if adapters != "none":
        LoRA(r=2, alpha=4, trainable_tokens=not alone).apply(policy)
        step(policy, 1e-2)  # so that both of an adapter's factors count
    with vllm_server() as server:
        server.policy = small_policy()
        engine = VLLMEngine(256, dtype=dtype, adapters=alone, urls=[server.url], scratch=str(tmp_path), timeout=5.0)
        sampler = VLLMSampler(engine, policy, temperature=1.0)
        for _ in range(2):
            take_turns(sampler, asked(1))
            assert engine.gap < (1e-5 if dtype == "float32" else 0.02)
            step(policy, lr)
            sampler.load(policy)
        server.ignores_updates = True
        how = "differ by" if dtype == "float32" else "are nearer to those of earlier weights"
        with pytest.raises(EngineError, match=f"from the policy's weights: on the fixed prompts its .* {how}"):
            sampler.submit(asked(1))


class Engine:
    """Continues prompts as some weights do, give or take rounding: in bfloat16 of 0.05 a log-prob."""

    def __init__(self, policy: Policy, rounding: float = 0.05) -> None:
        self.policy, self.rounding, self.noise = policy, rounding, torch.Generator().manual_seed(0)

    def __call__(self, prompts: list[tuple[int, ...]]) -> list[Generated]:
        with torch.no_grad():
            logps = self.policy.model(torch.tensor(prompts)).logits[:, -1].log_softmax(-1)
        best = logps.max(-1)
        rounded = best.values + self.rounding * torch.randn(len(prompts), generator=self.noise)
        return [Generated((int(i),), (float(x),), "length", None) for i, x in zip(best.indices, rounded, strict=True)]


@pytest.mark.parametrize(("dtype", "rounding", "lr"), [("bfloat16", 0.05, 3e-4), ("float32", 6e-6, 3e-7)])
def test_steps_within_rounding_are_proved_together(dtype: Dtype, rounding: float, lr: float) -> None:
    """One engine follows, one stays at its first weights; each step moves log-probs less than rounding shows."""
    policy, stuck = small_policy(), Engine(small_policy(), rounding)
    follows, stays = WeightProof(dtype), WeightProof(dtype)
    for number in range(9):
        follows(lambda: policy.model, Engine(policy, rounding))
        if number < 3:
            stays(lambda: policy.model, stuck)
        step(policy, lr)
    with pytest.raises(EngineError, match="nearer to those of earlier weights"):
        stays(lambda: policy.model, stuck)


@pytest.mark.parametrize("rounding", [0.0, 5e-4])
def test_what_a_bfloat16_trainer_rounds_is_no_move_of_its_weights(rounding: float) -> None:
    """Each update rounds its own log-probs anew, here by 5e-4, and moves them by less; frozen weights stay bfloat16."""
    policy = small_policy()
    policy.model.to(torch.bfloat16)
    LoRA(r=2, alpha=4, trainable_tokens=False).apply(policy)
    before = [one.detach().clone() for one in policy.model.parameters()]

    def served() -> Engine:
        return Engine(Policy(copy.deepcopy(policy.model).float(), policy.tokenizer), rounding)

    follows, stays, stuck = WeightProof("bfloat16"), WeightProof("bfloat16"), served()
    stays(lambda: policy.model, stuck)
    for _ in range(8):
        follows(lambda: policy.model, served())
        step(policy, 1e-4)
    with pytest.raises(EngineError, match="nearer to those of earlier weights"):
        stays(lambda: policy.model, stuck)
    frozen = [(old, new) for old, new in zip(before, policy.model.parameters(), strict=True) if not new.requires_grad]
    assert len(frozen) > 5
    assert all(new.dtype == torch.bfloat16 and torch.equal(old, new) for old, new in frozen)


def test_rounding_alone_is_no_reason_and_far_weights_are() -> None:
    policy, other = small_policy(), small_policy()
    proof = WeightProof("bfloat16")
    for _ in range(20):
        assert proof(lambda: policy.model, Engine(policy)) == pytest.approx(0.04, abs=0.02)
    with torch.no_grad():
        other.model.lm_head.weight.mul_(3.0)
    with pytest.raises(EngineError, match=r"differ by .* a token, more than 0.2"):
        WeightProof("bfloat16")(lambda: policy.model, Engine(other))


def test_a_version_is_read_once_for_the_policy_may_train_when_its_server_starts_again() -> None:
    policy, sampled, read = small_policy(), small_policy(), list[str]()
    proof = WeightProof("float32")

    def proved(version: str) -> float:
        return proof(lambda: read.append(version) or policy.model, Engine(sampled, 6e-6), version)

    first = proved("weights-1")
    step(policy, 1e-2)
    assert proved("weights-1") == pytest.approx(first, abs=1e-5)
    assert read == ["weights-1"], "which of a whole model written for the server is 16 GB"
    with pytest.raises(EngineError, match="does not sample from the policy's weights"):
        proved("weights-2")

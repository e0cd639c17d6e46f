"""Ratios of GRPO's loss: one a sequence, weights for another sampler, and what a constant denominator counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch
from modules.episode_tensors import by_step
from modules.functional.credit import gae_credit, reinforce_pp_credit
from modules.functional.credit_inputs import CreditInputs
from modules.functional.losses import sequence_policy_loss
from modules.policy import Policy
from modules.ppo import PPO
from modules.samplers.in_process import InProcessSampler
from modules.sequence_logprobs import sequence_logprobs
from tests.modules.test_grpo import TEMPERATURE, batch, changed, module, sampled, step
from tests.toy_rl import learn, small_policy

__all__ = ["batch"]  # the fixture
SEQUENCES = {"ratio": "sequence", "aggregate": "sequence_mean"}


def test_one_ratio_a_sequence_is_gspo_s_loss_with_its_gradient(batch: SequenceBatch) -> None:
    drifted, mask = small_policy(seed=5), batch.loss_mask_BT
    rows_B = torch.arange(len(batch)) - 3.0
    equal = changed(batch, advantages=rows_B[:, None].expand_as(mask).masked_fill(~mask, 0.0))
    clips = {"clip_low": 0.1, "clip_high": 0.2}
    loss, gradients = step(module(drifted, **SEQUENCES, **clips), equal)
    expected = small_policy(seed=5)
    logps_BT = sequence_logprobs(expected.model, batch, TEMPERATURE)
    by_hand = sequence_policy_loss(logps_BT, batch.logps_BT, rows_B, mask, **clips, denominator=1.0)
    by_hand.backward()
    assert loss == pytest.approx(by_hand.item(), rel=1e-4)
    for name, parameter in expected.model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(gradients[f"model.{name}"], parameter.grad, atol=1e-4), name


def test_sequences_are_counted_and_their_clips_are_those_of_whole_sequences(batch: SequenceBatch) -> None:
    made = module(small_policy(seed=5), **SEQUENCES, clip_low=0.01, clip_high=0.01)
    step(made, batch)
    assert int(made._count(batch)) == len(batch)
    mask_BT, logged = batch.loss_mask_BT, made.logged  # pyright: ignore
    with torch.no_grad():
        gaps_BT = (sequence_logprobs(made.model, batch, TEMPERATURE) - batch.logps_BT) * mask_BT
    ratio_BT = (gaps_BT.sum(dim=1) / mask_BT.sum(dim=1)).exp()[:, None].expand_as(gaps_BT)
    above_BT = (ratio_BT > 1.01) & (batch.channels["advantages"] > 0)
    below_BT = (ratio_BT < 0.99) & (batch.channels["advantages"] < 0)
    assert logged["clip_ratio/region_mean"] == pytest.approx(float((above_BT | below_BT)[mask_BT].float().mean()))
    assert 0 < logged["clip_ratio/region_mean"] < 1


def test_a_constant_denominator_counts_every_trained_sequence_as_equally_long(batch: SequenceBatch) -> None:
    assert int(module(denominator=512)._count(batch)) == 512 * len(batch)
    first = changed(batch, loss_mask_BT=batch.loss_mask_BT & (torch.arange(len(batch)) == 0)[:, None])
    assert int(module(denominator=512)._count(first)) == 512
    assert step(module(denominator=512), batch)[0] == step(module(), batch)[0]


def test_another_sampler_s_tokens_weigh_what_the_policy_makes_of_them(batch: SequenceBatch) -> None:
    """At the first update every ratio is 1: what remains is advantage times weight."""
    policy, mask = small_policy(seed=5), batch.loss_mask_BT
    with torch.no_grad():
        old_BT = sequence_logprobs(policy.model, batch, TEMPERATURE)
    made = module(policy, importance_cap=1.5)
    loss, _ = step(made, changed(batch, old_logps=old_BT))
    weights_N = (old_BT - batch.logps_BT)[mask].exp()
    expected = -(weights_N.clamp(max=1.5) * batch.channels["advantages"][mask]).sum()
    assert loss == pytest.approx(float(expected), rel=1e-4)
    logged = made.logged  # pyright: ignore
    share = float((weights_N >= 1.5).float().mean())
    assert 0 < share < 1
    assert logged["importance/truncated"] == pytest.approx(share)
    assert logged["importance/weight"] == pytest.approx(float(weights_N.clamp(max=1.5).mean()), rel=1e-4)
    assert logged["clip_ratio/region_mean"] == 0, "the ratio is to the policy before the update"
    assert logged["logp_gap/max"] > 0.01, "to the sampler there is a gap"


def test_the_policy_says_again_what_the_tokens_were_sampled_with() -> None:
    made, episodes = module(importance_cap=2.0, reference=small_policy(seed=5)), sampled()
    estimates = made.estimate(episodes)
    for row, episode in enumerate(episodes):
        stored = by_step(episode, [torch.tensor(turn.action_logps) for turn in episode.turns])
        assert estimates["old_logps_BT"][row, : len(stored)].tolist() == pytest.approx(stored.tolist(), abs=1e-4)
        assert not estimates["old_logps_BT"][row, len(stored) :].any()
        assert (estimates["reference_logps_BT"][row, : len(stored)] - stored).abs().max() > 0.01
    assert "old_logps_BT" not in module().estimate(episodes)


class Another(InProcessSampler):
    """Samples from a policy of its own, as a server with other weights would."""

    def load(self, policy: Policy) -> None:
        super().load(small_policy(seed=5))


def test_rollouts_of_another_sampler_are_corrected(tmp_path: Path) -> None:
    for cap in (2.0, None):
        made, watch, metrics = learn(
            tmp_path, iterations=2, lr=1e-2, rollout={"sampler": Another(temperature=1.0)}, importance_cap=cap
        )
        assert all(value.isfinite().all() for value in made.model.state_dict().values())
        assert metrics["logp_gap/max"] > 0.01
        assert ("importance/truncated" in metrics) == (cap is not None)
        assert all(("old_logps" in row.channels) == (cap is not None) for row in watch.buffers[1])
    assert metrics["clip_ratio/region_mean"] > 0, "without correction it clips what was never updated"


def test_ppo_corrects_another_sampler_s_tokens_too(tmp_path: Path) -> None:
    """Its divergence in the reward is that of the policy, as it says the tokens again."""
    seen: list[CreditInputs] = []

    def credit(inputs: CreditInputs) -> Tensor:
        seen.append(inputs)
        return gae_credit(inputs, kl_weight=0.1)

    own = {"module": PPO, "critic_lr": 1e-2, "credit": credit, "reference": small_policy()}
    sampler = {"sampler": Another(temperature=1.0)}
    made, watch, metrics = learn(tmp_path, iterations=2, lr=1e-2, rollout=sampler, importance_cap=2.0, **own)
    assert made.importance_cap == 2.0
    assert metrics["logp_gap/max"] > 0.01
    assert 0 < metrics["importance/weight"] <= 2
    assert all("old_logps" in row.channels for row in watch.buffers[1])
    first, trained = seen[0], seen[0].trained_BT
    assert first.old_logps_BT is not None
    assert first.reference_logps_BT is not None
    gaps_BT = (first.old_logps_BT - first.reference_logps_BT).abs()
    assert float(gaps_BT[trained].max()) < 1e-4, "before the first update the policy is its reference, not the sampler"


def test_reinforce_pp_reads_the_reference(tmp_path: Path) -> None:
    seen: list[CreditInputs] = []

    def credit(inputs: CreditInputs) -> Tensor:
        seen.append(inputs)
        return reinforce_pp_credit(inputs, kl_weight=0.1)

    learn(tmp_path, iterations=1, credit=credit, reference=small_policy(seed=5))
    (inputs,) = seen
    assert inputs.reference_logps_BT is not None
    gap = (inputs.old_logps_BT - inputs.reference_logps_BT)[inputs.trained_BT]
    assert gap.abs().max() > 0.01
    without = reinforce_pp_credit(replace(inputs, reference_logps_BT=inputs.old_logps_BT), kl_weight=0.1)
    assert not torch.allclose(without, reinforce_pp_credit(inputs, kl_weight=0.1))
    assert torch.allclose(without, reinforce_pp_credit(inputs))


def test_reinforce_pp_without_the_reference_it_needs_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the log-probs of a reference"):
        learn(tmp_path, iterations=1, credit=partial(reinforce_pp_credit, kl_weight=0.1))

"""Reinforcement learning from advantages: the clipped policy gradient of GRPO and ProRAG (Eq 9)."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch
from modules.functional.logprobs import token_entropy, token_logprobs
from modules.functional.losses import Aggregate, clipped_policy_loss, k3_divergence, masked_total
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.sequence_logprobs import sequence_logprobs, spread, trained_logits
from modules.training import Training


class GRPO(Training):
    """Trains a policy on its own episodes, whose batches carry advantages and the log-probs they were sampled with.

    Args:
        temperature: of sampling and of the log-probs alike: whoever samples reads it here.
        clip_low: how far below 1 the ratio to the sampling policy counts.
        clip_high: how far above.
        aggregate: `token_mean` over trained tokens, `sequence_mean`, or `group_sum` (Eq 9 as written).
        denominator: what `token_mean` divides by: the `policy` tokens, or `all` tokens from the first of them on, with
            passages and scaffold between, as the released code does.
        zero_variance: whether groups whose advantages are all 0 stay in the denominators or are dropped; whoever
            samples reads it here.
        kl_weight: weight of the divergence from `reference` (k3), added to the loss of each token.
        reference: a policy that stays as it is.

    Raises:
        ConfigError: a setting is out of range, or a KL weight has no reference.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        temperature: float = 1.0,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        aggregate: Aggregate = "token_mean",
        denominator: Literal["policy", "all"] = "policy",
        zero_variance: Literal["keep", "drop"] = "keep",
        kl_weight: float = 0.0,
        reference: Policy | None = None,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if temperature <= 0 or not 0 < clip_low <= 1 or clip_high <= 0 or kl_weight < 0:
            settings = f"temperature {temperature}, clip_low {clip_low}, clip_high {clip_high}, kl_weight {kl_weight}"
            raise ConfigError(f"{settings}: temperature and clips must be > 0, clip_low <= 1, kl_weight >= 0")
        if kl_weight and reference is None:
            raise ConfigError("kl_weight needs a reference policy to stay close to")
        if denominator == "all" and aggregate != "token_mean":
            raise ConfigError(f"denominator 'all' counts tokens, but aggregate is {aggregate}")
        frozen = None if reference is None else _frozen(reference, policy)  # before an adapter changes the policy
        super().__init__(policy, optimizer, lora=lora, gradient_checkpointing=gradient_checkpointing)
        self.temperature, self.clip_low, self.clip_high = temperature, clip_low, clip_high
        self.aggregate: Aggregate = aggregate
        self.denominator, self.zero_variance, self.kl_weight = denominator, zero_variance, kl_weight
        self.reference = frozen

    def training_step(self, batch: SequenceBatch, index: int) -> Tensor:
        assert batch.advantages_BT is not None
        mask_BT, old_BT = batch.loss_mask_BT, batch.logps_BT
        logits_BKV, positions_K = trained_logits(self.model, batch)
        ids_BK = batch.ids_BT[:, positions_K]
        logps_BT = spread(token_logprobs(logits_BKV, ids_BK, self.temperature), positions_K, batch)
        total = clipped_policy_loss(
            logps_BT,
            old_BT,
            batch.advantages_BT,
            mask_BT,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            aggregate=self.aggregate,
            denominator=1.0,
        )
        anchor_BT = old_BT
        if self.reference is not None:
            with torch.no_grad():
                anchor_BT = sequence_logprobs(self.reference.model, batch, self.temperature)
            if self.kl_weight:
                kl_BT = k3_divergence(logps_BT, anchor_BT)
                total = total + self.kl_weight * masked_total(kl_BT, mask_BT, self.aggregate)
        with torch.no_grad():
            entropy_BT = spread(token_entropy(logits_BKV, self.temperature), positions_K, batch)
            self._log(batch, index, logps_BT.detach(), anchor_BT, entropy_BT)
        return self.mean_loss(total, self._count_of(batch))

    def _count_of(self, batch: SequenceBatch) -> Tensor:
        """What the sum of the losses of a batch is a mean over."""
        mask_BT = batch.loss_mask_BT
        if self.aggregate != "token_mean":
            return mask_BT.any(dim=1).sum()
        if self.denominator == "policy":
            return mask_BT.sum()
        return ((mask_BT.cumsum(dim=1) > 0) & batch.attention_BT).sum()

    def _log(self, batch: SequenceBatch, index: int, logps_BT: Tensor, anchor_BT: Tensor, entropy_BT: Tensor) -> None:
        """Means over the trained tokens of the iteration."""
        assert batch.advantages_BT is not None
        mask_BT = batch.loss_mask_BT
        tokens = int(mask_BT.sum())
        change_N, advantage_N = (logps_BT - batch.logps_BT)[mask_BT], batch.advantages_BT[mask_BT]
        low_N = (change_N.exp() < 1 - self.clip_low) & (advantage_N < 0)
        high_N = (change_N.exp() > 1 + self.clip_high) & (advantage_N > 0)
        drift_N = logps_BT[mask_BT] - anchor_BT[mask_BT]
        means = {
            "entropy": entropy_BT[mask_BT],
            "clip_ratio/low_mean": low_N,
            "clip_ratio/high_mean": high_N,
            "clip_ratio/region_mean": low_N | high_N,
            "kl": k3_divergence(logps_BT, anchor_BT)[mask_BT],
            "kl_k1": drift_N,
        }
        if index < self.trainer.accumulate_grad_batches:  # later the weights are no more those that sampled
            means["logp_gap/mean"] = change_N.abs()
            largest = change_N.abs().max() if tokens else change_N.new_zeros(())
            self.log("logp_gap/max", largest, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
        for name, values_N in means.items():
            self._log_mean(name, values_N.float().sum() / max(tokens, 1), tokens)

    def _log_mean(self, name: str, value: Tensor, weight: int) -> None:
        """Log a mean once an iteration, weighted, over all ranks."""
        self.log(name, value, on_step=False, on_epoch=True, sync_dist=True, batch_size=max(weight, 1))


def _frozen(reference: Policy, policy: Policy) -> Policy:
    """The reference, apart from the policy: equal components of a config are one object."""
    model = copy.deepcopy(reference.model) if reference.model is policy.model else reference.model
    return Policy(model.eval().requires_grad_(False), reference.tokenizer)

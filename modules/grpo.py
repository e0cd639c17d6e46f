"""Reinforcement learning from advantages: the clipped policy gradient of GRPO and ProRAG (Eq 9).

An iteration, from top to bottom: the rollout callback samples and scores groups of episodes; `estimate` asks other
models about them; `credit` gives their advantages; `trained_episodes` says which of them train, `token_channels` with
what; `training_step` is the loss, with the frozen reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import PackedSequence, SequenceBatch
from envs.types import Episode
from modules.estimates import token_estimates
from modules.functional.credit import Credit, CreditInputs, Estimates
from modules.functional.losses import (
    Aggregate,
    clipped_policy_loss,
    clipped_tokens,
    k3_divergence,
    masked_total,
    truncated_weights,
    with_sequence_ratio,
)
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.reference import frozen_reference, reference_logprobs
from modules.sequence_logprobs import logprobs_and_entropy, sequence_logprobs
from modules.training import Training
from modules.training_rows import flat_groups, training_rows


class GRPO(Training):
    """Trains a policy on its own episodes, whose batches carry advantages and the log-probs they were sampled with.

    Args:
        credit: a credit function, from the `CreditInputs` of an iteration to advantages `[B, S]` or `[B, T]`.
        temperature: of the log-probs in the loss; the sampler must have the same.
        clip_low: how far below 1 the ratio to the sampling policy counts.
        clip_high: how far above.
        ratio: of the policy to the one that sampled, each `token`'s own or one a `sequence`, their geometric mean
            (GSPO; with unequal advantages in a sequence, GSPO-token), which needs `sequence_mean`.
        aggregate: `token_mean` over trained tokens, `sequence_mean`, or `group_sum` (Eq 9 as written).
        denominator: what `token_mean` divides by: the `policy` tokens, or `all` tokens from the first of them on, with
            passages and scaffold between, as the released code does. A number stands for the tokens of every trained
            sequence, so that a long episode counts as a short one (Dr. GRPO).
        zero_variance: keep the groups whose advantages are all 0 in the denominators, drop them, or `resample`: put
            groups of other questions in their place, and drop those that are still flat after `resample_rounds`.
        importance_cap: for a sampler that is not the trainer, such as a quantised or a remote one: the log-probs before
            the update are computed again, and each token weighs their ratio to the sampler's, at most this much (TIS).
        kl_weight: weight of the divergence from `reference` (k3), added to the loss of each token.
        entropy_weight: weight of the entropy, a reward in the loss of each token; a whole distribution's, in nats.
        reference: the frozen reference. Where it is the policy's own component it is the policy as it is now: the
            model with its adapters disabled where `lora` trains adapters, else a copy.

    Raises:
        ConfigError: a setting is out of range, or there is a KL weight but no reference.
    """

    smallest_group = 2  # a lone episode has nothing to be compared with

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        credit: Credit,
        temperature: float = 1.0,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        ratio: Literal["token", "sequence"] = "token",
        aggregate: Aggregate = "token_mean",
        denominator: Literal["policy", "all"] | int = "policy",
        zero_variance: Literal["keep", "drop", "resample"] = "keep",
        resample_rounds: int = 3,
        importance_cap: float | None = None,
        kl_weight: float = 0.0,
        entropy_weight: float = 0.0,
        reference: Policy | None = None,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if temperature <= 0 or not 0 < clip_low <= 1 or clip_high <= 0 or min(kl_weight, entropy_weight) < 0:
            settings = f"temperature {temperature}, clip_low {clip_low}, clip_high {clip_high}, kl_weight {kl_weight}"
            raise ConfigError(
                f"{settings}, entropy_weight {entropy_weight}: temperature and clips must be > 0, clip_low <= 1, "
                "weights >= 0"
            )
        if kl_weight and reference is None:
            raise ConfigError("kl_weight needs a reference policy")
        if denominator != "policy" and aggregate != "token_mean":
            raise ConfigError(f"denominator {denominator!r} counts tokens, but aggregate is {aggregate}")
        if (isinstance(denominator, int) and denominator < 1) or resample_rounds < 1:
            raise ConfigError(f"denominator {denominator!r}, resample_rounds {resample_rounds}: at least 1")
        if importance_cap is not None and importance_cap <= 0:
            raise ConfigError(f"importance_cap {importance_cap}: it must be > 0, or null for none")
        if ratio == "sequence" and aggregate != "sequence_mean":
            raise ConfigError(f"ratio sequence is a mean over sequences, but aggregate is {aggregate}: sequence_mean")
        if reference is not None:
            reference = frozen_reference(reference, policy, lora)
        super().__init__(policy, optimizer, lora=lora, gradient_checkpointing=gradient_checkpointing)
        self.credit, self.temperature, self.clip_low, self.clip_high = credit, temperature, clip_low, clip_high
        self.ratio, self.denominator = ratio, denominator
        self.kl_weight, self.entropy_weight = kl_weight, entropy_weight
        self.importance_cap = importance_cap
        self.aggregate: Aggregate = aggregate
        self.zero_variance, self.resample_rounds = zero_variance, resample_rounds if zero_variance == "resample" else 0
        self.reference = reference

    @property
    def corrects(self) -> bool:
        """Whether tokens weigh the ratio of the trainer's log-probs to the sampler's."""
        return self.importance_cap is not None

    def estimate(self, episodes: Sequence[Episode]) -> Estimates:
        """What the reference says of the sampled tokens and, with truncated importance weights, the policy itself.

        Parameters are whole meanwhile. Ranks hold different episodes, so there may be no collective call.
        """
        reference_BT = old_BT = None
        if self.reference is not None:
            reference_BT = token_estimates(partial(self._reference_logprobs, self.reference), episodes, self.device)
        if self.importance_cap is not None:
            ask = partial(sequence_logprobs, self.model, temperature=self.temperature)
            old_BT = token_estimates(ask, episodes, self.device)
        return Estimates(reference_logps_BT=reference_BT, old_logps_BT=old_BT)

    def trained_episodes(self, inputs: CreditInputs, advantages_BT: Tensor) -> Tensor:
        """Which episodes of an iteration train, `[B]` bool: those that were scored, less the groups dropped."""
        scored_B = inputs.outcome_B.isfinite()
        if self.zero_variance == "keep":
            return scored_B
        flat = torch.tensor(flat_groups(advantages_BT, inputs.group_size), dtype=torch.long)
        return scored_B.reshape(-1, inputs.group_size).index_fill(0, flat, False).flatten()

    def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
        """What the loss reads of every sampled token, `[B, T]` by name out of `envs.packing.CHANNELS`.

        Called last before the buffer is filled, on all ranks: statistics of the whole iteration are reduced here.
        """
        channels = {"advantages": advantages_BT}
        if inputs.reference_logps_BT is not None:
            channels["reference_logps"] = inputs.reference_logps_BT
        if self.importance_cap is not None and inputs.old_logps_BT is not None:
            channels["old_logps"] = inputs.old_logps_BT
        return channels

    def rows(
        self, episodes: Sequence[Episode], inputs: CreditInputs, kept_B: Tensor, channels: Mapping[str, Tensor]
    ) -> list[list[PackedSequence]]:
        """The training sequences of each episode; see `modules.training_rows.training_rows`."""
        return training_rows(episodes, kept_B.tolist(), channels)

    def training_step(self, batch: SequenceBatch, index: int) -> Tensor:
        return self.mean_loss(self.policy_loss(batch, index), self._count(batch))

    def policy_loss(self, batch: SequenceBatch, index: int) -> Tensor:
        """The sum of the policy's losses over a batch."""
        mask_BT, advantages_BT = batch.loss_mask_BT, batch.channels["advantages"]
        old_BT = batch.channels.get("old_logps", batch.logps_BT)
        if self.importance_cap is not None:
            weights_BT = truncated_weights(old_BT, batch.logps_BT, mask_BT, cap=self.importance_cap)
            advantages_BT = advantages_BT * weights_BT
            self._log_token_mean("importance/weight", weights_BT, mask_BT)
            self._log_token_mean("importance/truncated", weights_BT >= self.importance_cap, mask_BT)
        logps_BT, entropy_BT = logprobs_and_entropy(self.model, batch, self.temperature)
        compared_BT = with_sequence_ratio(logps_BT, old_BT, mask_BT) if self.ratio == "sequence" else logps_BT
        total = clipped_policy_loss(
            compared_BT,
            old_BT,
            advantages_BT,
            mask_BT,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            aggregate=self.aggregate,
            denominator=1.0,  # `mean_loss` divides, by the count of all ranks and batches
        )
        anchor_BT = batch.channels.get("reference_logps", old_BT)  # without a reference the policy that sampled
        if self.kl_weight:
            total = total + self.kl_weight * masked_total(k3_divergence(logps_BT, anchor_BT), mask_BT, self.aggregate)
        if self.entropy_weight:
            total = total - self.entropy_weight * masked_total(entropy_BT, mask_BT, self.aggregate)
        with torch.no_grad():
            self._log(batch, index, logps_BT, anchor_BT, entropy_BT)
            self._log_clips(batch, compared_BT, old_BT)
        return total

    def _reference_logprobs(self, reference: Policy, batch: SequenceBatch) -> Tensor:
        """`[B, T]`: the reference's log-probs of the trained tokens."""
        return reference_logprobs(reference, self.model, batch, self.temperature)

    def _count(self, batch: SequenceBatch) -> Tensor:
        """What the sum of a batch's losses is divided by."""
        mask_BT = batch.loss_mask_BT
        if self.aggregate != "token_mean":
            return mask_BT.any(dim=1).sum()
        if isinstance(self.denominator, int):
            return mask_BT.any(dim=1).sum() * self.denominator
        if self.denominator == "policy":
            return mask_BT.sum()
        return ((mask_BT.cumsum(dim=1) > 0) & batch.attention_BT).sum()

    def _log(self, batch: SequenceBatch, index: int, logps_BT: Tensor, anchor_BT: Tensor, entropy_BT: Tensor) -> None:
        """Means over the trained tokens of the iteration."""
        mask_BT = batch.loss_mask_BT
        divergence_BT = k3_divergence(logps_BT, anchor_BT)
        means = {"entropy": entropy_BT, "kl": divergence_BT, "kl_k1": logps_BT - anchor_BT}
        if index < self.trainer.accumulate_grad_batches:  # in later updates the weights are not those that sampled
            gap_BT = (logps_BT - batch.logps_BT).abs()
            means["logp_gap/mean"] = gap_BT
            means["logp_gap/kl"] = k3_divergence(batch.logps_BT, logps_BT)  # from the sampler to the trainer
            largest = gap_BT[mask_BT].max() if mask_BT.any() else gap_BT.new_zeros(())
            self.log("logp_gap/max", largest, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
        for name, values_BT in means.items():
            self._log_token_mean(name, values_BT, mask_BT)

    def _log_clips(self, batch: SequenceBatch, logps_BT: Tensor, old_BT: Tensor) -> None:
        clips = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        low_BT, high_BT = clipped_tokens(logps_BT, old_BT, batch.channels["advantages"], **clips)
        shares = {"low_mean": low_BT, "high_mean": high_BT, "region_mean": low_BT | high_BT}
        for name, clipped_BT in shares.items():
            self._log_token_mean(f"clip_ratio/{name}", clipped_BT, batch.loss_mask_BT)

    def _log_token_mean(self, name: str, values_BT: Tensor, mask_BT: Tensor) -> None:
        """A mean over the trained tokens of the iteration."""
        tokens = int(mask_BT.sum())  # 0 in a forward pass that an update does not need: it has no weight
        mean = values_BT[mask_BT].float().sum() / max(tokens, 1)
        self.log(name, mean, on_step=False, on_epoch=True, sync_dist=True, batch_size=tokens)

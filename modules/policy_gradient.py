"""Policy gradient from advantages: credit and training rows of an iteration, and the clipped surrogate loss of a batch.

What GRPO, PPO and the joint PPO of several agents share. An iteration, from top to bottom: the rollout callback samples
and scores groups of episodes; `estimate` asks models about them; `assign` runs the credit function, says which episodes
train and packs them with what the loss reads of every token; `policy_loss` is the loss of a batch of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import PackedSequence, SequenceBatch
from envs.types import Episode
from modules.functional.credit import Credit
from modules.functional.credit_inputs import CreditInputs, MissingInput
from modules.functional.losses import (
    Aggregate,
    clipped_policy_loss,
    clipped_tokens,
    k3_divergence,
    likelihood_guard,
    masked_total,
    truncated_weights,
    with_sequence_ratio,
)
from modules.sequence_logprobs import logprobs_and_entropy
from modules.training import BaseTraining
from modules.training_rows import flat_groups, in_places, step_means, token_advantages, training_rows


@dataclass(frozen=True, slots=True)
class Credited:
    """Credit of an iteration's B episodes.

    Attributes:
        advantages_BS: `[B, S]`, the advantage of each step, the mean of its tokens' where they differ.
        flat: numbers of the groups whose advantages are all 0.
        rows: the training sequences of each place in the buffer.
    """

    advantages_BS: Tensor
    flat: list[int]
    rows: list[list[PackedSequence]]


class PolicyGradient(BaseTraining):
    """Base of modules that train policies on their own episodes; a subclass sets what its configuration gives.

    Attributes:
        credit: a credit function.
        temperature: of the log-probs in the loss; the sampler must have the same.
        smallest_group: episodes of a question that its credit compares, at least.
        resample_rounds: how often at most groups whose advantages are all 0 are replaced by groups of other questions.

    The settings of the loss are explained at `modules.grpo:GRPO`.
    """

    credit: Credit
    temperature: float
    clip_low: float
    clip_high: float
    kl_weight: float
    entropy_weight: float = 0.0
    ratio: Literal["token", "sequence"] = "token"
    aggregate: Aggregate = "token_mean"
    importance_cap: float | None = None
    likelihood_weight: float = 0.0
    smallest_group: int = 1
    resample_rounds: int = 0

    def set_loss(
        self, temperature: float, clip_low: float, clip_high: float, kl_weight: float, entropy_weight: float = 0.0
    ) -> None:
        """Set what every surrogate loss has.

        Raises:
            ConfigError: a setting is out of range.
        """
        if min(temperature, clip_high) <= 0 or not 0 < clip_low <= 1 or min(kl_weight, entropy_weight) < 0:
            raise ConfigError(
                f"temperature {temperature}, clip_low {clip_low}, clip_high {clip_high}, kl_weight {kl_weight}, "
                f"entropy_weight {entropy_weight}: temperature and clips must be > 0, clip_low <= 1, weights >= 0"
            )
        self.temperature, self.clip_low, self.clip_high = temperature, clip_low, clip_high
        self.kl_weight, self.entropy_weight = kl_weight, entropy_weight

    def estimate(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Outputs of critic, reference or policy for the sampled tokens, by the `CreditInputs` field that they fill.

        Parameters are whole meanwhile. Ranks hold different episodes, so there may be no collective call.
        """
        raise NotImplementedError

    def assign(self, episodes: Sequence[Episode], inputs: CreditInputs) -> Credited:
        """Credit of an iteration's episodes, and their training sequences; called on all ranks.

        Raises:
            ConfigError: the credit function needs what this module does not give.
            TrainingError: it gave advantages of a wrong shape, or that are not finite.
        """
        advantages, advantages_BT = self._advantages(inputs)
        kept_B = self.trained_episodes(inputs, advantages_BT)
        channels = self.token_channels(inputs, advantages_BT, kept_B)
        rows = in_places(episodes, self.rows(episodes, inputs, kept_B, channels), inputs.group_size)
        lengths_BS = inputs.step_lengths_BS
        per_step = advantages.shape == lengths_BS.shape
        advantages_BS = advantages if per_step else step_means(advantages_BT, lengths_BS)
        return Credited(advantages_BS, flat_groups(advantages_BT, inputs.group_size), rows)

    def flat_groups(self, inputs: CreditInputs) -> list[int]:
        """Numbers of the groups whose advantages are all 0, from this rank's episodes alone."""
        return flat_groups(self._advantages(inputs)[1], inputs.group_size)

    def trained_episodes(self, inputs: CreditInputs, advantages_BT: Tensor) -> Tensor:
        """Which episodes train, `[B]` bool: those whose outcome is known."""
        return inputs.outcome_B.isfinite()

    def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
        """Per-token inputs of the loss, `[B, T]` by name out of `envs.packing.CHANNELS`.

        Called on all ranks: statistics of the whole iteration are reduced here.
        """
        channels = {"advantages": advantages_BT}
        if inputs.reference_logps_BT is not None:
            channels["reference_logps"] = inputs.reference_logps_BT
        if self.importance_cap is not None:
            channels["old_logps"] = inputs.old_logps_BT
        return channels

    def rows(
        self, episodes: Sequence[Episode], inputs: CreditInputs, kept_B: Tensor, channels: Mapping[str, Tensor]
    ) -> list[list[PackedSequence]]:
        """The training sequences of each episode; see `modules.training_rows.training_rows`."""
        return training_rows(episodes, kept_B.tolist(), channels)

    def policy_loss(self, batch: SequenceBatch, index: int, agent: str = "") -> Tensor:
        """The sum of the losses of the policy, or of one agent's, over a batch of its rows."""
        mask_BT, advantages_BT = batch.loss_mask_BT, batch.channels["advantages"]
        old_BT = batch.channels.get("old_logps", batch.logps_BT)
        if self.importance_cap is not None:
            weights_BT = truncated_weights(old_BT, batch.logps_BT, mask_BT, cap=self.importance_cap)
            advantages_BT = advantages_BT * weights_BT
            truncated_BT = weights_BT >= self.importance_cap
            self.log_token_means({"importance/weight": weights_BT, "importance/truncated": truncated_BT}, mask_BT)
        model = self.model[agent] if agent else self.model
        logps_BT, entropy_BT = logprobs_and_entropy(model, batch, self.temperature)
        compared_BT = with_sequence_ratio(logps_BT, old_BT, mask_BT) if self.ratio == "sequence" else logps_BT
        total = clipped_policy_loss(
            compared_BT,
            old_BT,
            advantages_BT,
            mask_BT,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            aggregate=self.aggregate,
            denominator=1.0,  # `mean_losses` divides, by the count of all ranks and batches
        )
        anchor_BT = batch.channels.get("reference_logps", old_BT)  # without a reference the policy that sampled
        if self.kl_weight:
            total = total + self.kl_weight * masked_total(k3_divergence(logps_BT, anchor_BT), mask_BT, self.aggregate)
        later = index >= self.trainer.accumulate_grad_batches  # in the first update nothing but rounding is lost
        if self.likelihood_weight and later:
            lost = likelihood_guard(
                logps_BT, old_BT, advantages_BT, mask_BT, batch.step_index_BT, aggregate=self.aggregate, denominator=1.0
            )
            total = total + self.likelihood_weight * lost
        if self.entropy_weight:
            total = total - self.entropy_weight * masked_total(entropy_BT, mask_BT, self.aggregate)
        with torch.no_grad():
            self._log(batch, index, logps_BT, anchor_BT, entropy_BT, agent)
            self._log_clips(batch, compared_BT, old_BT, agent)
        return total

    def log_token_means(self, values: Mapping[str, Tensor], mask_BT: Tensor, agent: str = "") -> None:
        """Log means over the trained tokens of the iteration: of all agents together, and of this one's alone."""
        tokens = int(mask_BT.sum())  # 0 in a forward pass that an update does not need: it has no weight
        for name, values_BT in values.items():
            mean = values_BT[mask_BT].float().sum() / max(tokens, 1)
            for tag in (name, f"{name}/{agent}") if agent else (name,):
                self.log(tag, mean, on_step=False, on_epoch=True, sync_dist=True, batch_size=tokens)

    def _advantages(self, inputs: CreditInputs) -> tuple[Tensor, Tensor]:
        """Advantages from the credit function, `[B, S]` or `[B, T]`, and those of every token, `[B, T]`."""
        try:
            advantages = self.credit(inputs)
        except MissingInput as error:
            raise ConfigError(str(error)) from error
        return advantages, token_advantages(advantages, inputs.step_lengths_BS)

    def _log(
        self, batch: SequenceBatch, index: int, logps_BT: Tensor, anchor_BT: Tensor, entropy_BT: Tensor, agent: str = ""
    ) -> None:
        mask_BT = batch.loss_mask_BT
        divergence_BT = k3_divergence(logps_BT, anchor_BT)
        means = {"entropy": entropy_BT, "kl": divergence_BT, "kl_k1": logps_BT - anchor_BT}
        if index < self.trainer.accumulate_grad_batches:  # in later updates the weights are not those that sampled
            gap_BT = (logps_BT - batch.logps_BT).abs()
            means["logp_gap/mean"] = gap_BT
            means["logp_gap/kl"] = k3_divergence(batch.logps_BT, logps_BT)  # from the sampler to the trainer
            largest = gap_BT[mask_BT].max() if mask_BT.any() else gap_BT.new_zeros(())
            for tag in ("logp_gap/max", f"logp_gap/max/{agent}") if agent else ("logp_gap/max",):
                self.log(tag, largest, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
        self.log_token_means(means, mask_BT, agent)

    def _log_clips(self, batch: SequenceBatch, logps_BT: Tensor, old_BT: Tensor, agent: str = "") -> None:
        clips = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        low_BT, high_BT = clipped_tokens(logps_BT, old_BT, batch.channels["advantages"], **clips)
        shares = {"low_mean": low_BT, "high_mean": high_BT, "region_mean": low_BT | high_BT}
        named = {f"clip_ratio/{name}": clipped_BT for name, clipped_BT in shares.items()}
        self.log_token_means(named, batch.loss_mask_BT, agent)

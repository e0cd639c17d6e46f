"""Reinforcement learning from groups of episodes: the clipped policy gradient of GRPO and ProRAG (Eq 9).

`modules.policy_gradient` has the way from scored episodes to training rows, and the loss of a batch; here is what GRPO
asks of other models, which groups it drops, and what it divides by.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch
from envs.types import Episode
from modules.episode_tensors import token_estimates
from modules.functional.credit import PATH_CREDITS, Credit
from modules.functional.credit_inputs import CreditInputs
from modules.functional.losses import Aggregate
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.policy_gradient import PolicyGradient
from modules.reference import frozen_reference, reference_logprobs
from modules.sequence_logprobs import sequence_logprobs
from modules.training import Training
from modules.training_rows import flat_groups


class GRPO(PolicyGradient, Training):
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
        importance_cap: for a sampler that is not the trainer, such as a quantised or a remote one or an earlier policy:
            the log-probs before the update are computed again, and each token weighs their ratio to the sampler's, at
            most this much (TIS).
        likelihood_weight: weight of what good actions have lost in likelihood since they were sampled (LLDS), from the
            second update of an iteration on.
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
        likelihood_weight: float = 0.0,
        kl_weight: float = 0.0,
        entropy_weight: float = 0.0,
        reference: Policy | None = None,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if kl_weight and reference is None:
            raise ConfigError("kl_weight needs a reference policy")
        if denominator != "policy" and aggregate != "token_mean":
            raise ConfigError(f"denominator {denominator!r} counts tokens, but aggregate is {aggregate}")
        if (isinstance(denominator, int) and denominator < 1) or resample_rounds < 1:
            raise ConfigError(f"denominator {denominator!r}, resample_rounds {resample_rounds}: at least 1")
        if importance_cap is not None and importance_cap <= 0:
            raise ConfigError(f"importance_cap {importance_cap}: it must be > 0, or null for none")
        if likelihood_weight < 0:
            raise ConfigError(f"likelihood_weight {likelihood_weight}: it must be at least 0")
        if ratio == "sequence" and aggregate != "sequence_mean":
            raise ConfigError(f"ratio sequence is a mean over sequences, but aggregate is {aggregate}: sequence_mean")
        compares_paths = getattr(credit, "func", credit) in PATH_CREDITS
        if compares_paths and zero_variance == "resample":
            raise ConfigError(
                "zero_variance: resample replaces groups, but this credit compares the paths of a tree: give drop"
            )
        if reference is not None:
            reference = frozen_reference(reference, policy, lora)
        super().__init__(policy, optimizer, lora=lora, gradient_checkpointing=gradient_checkpointing)
        self.set_loss(temperature, clip_low, clip_high, kl_weight, entropy_weight)
        self.credit, self.importance_cap, self.likelihood_weight = credit, importance_cap, likelihood_weight
        if compares_paths:
            self.smallest_group = 1
        self.ratio: Literal["token", "sequence"] = ratio
        self.aggregate: Aggregate = aggregate
        self.denominator, self.reference, self.zero_variance = denominator, reference, zero_variance
        self.resample_rounds = resample_rounds if zero_variance == "resample" else 0

    def estimate(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """The reference's log-probs of the sampled tokens and, with truncated importance weights, the policy's own."""
        estimates: dict[str, Tensor] = {}
        if self.reference is not None:
            ask = partial(reference_logprobs, self.reference, self.model, temperature=self.temperature)
            estimates["reference_logps_BT"] = token_estimates(ask, episodes, self.device)
        if self.importance_cap is not None:
            ask = partial(sequence_logprobs, self.model, temperature=self.temperature)
            estimates["old_logps_BT"] = token_estimates(ask, episodes, self.device)
        return estimates

    def trained_episodes(self, inputs: CreditInputs, advantages_BT: Tensor) -> Tensor:
        """Which episodes of an iteration train, `[B]` bool: those that were scored, less the groups dropped."""
        scored_B = inputs.outcome_B.isfinite()
        if self.zero_variance == "keep":
            return scored_B
        flat = torch.tensor(flat_groups(advantages_BT, inputs.group_size), dtype=torch.long)
        return scored_B.reshape(-1, inputs.group_size).index_fill(0, flat, False).flatten()

    def training_step(self, batch: SequenceBatch, index: int) -> Tensor:
        return self.mean_loss(self.policy_loss(batch, index), self._count(batch))

    def _count(self, batch: SequenceBatch) -> Tensor:
        """Divisor of the sum of a batch's losses."""
        mask_BT = batch.loss_mask_BT
        if self.aggregate != "token_mean":
            return mask_BT.any(dim=1).sum()
        if isinstance(self.denominator, int):
            return mask_BT.any(dim=1).sum() * self.denominator
        if self.denominator == "policy":
            return mask_BT.sum()
        return ((mask_BT.cumsum(dim=1) > 0) & batch.attention_BT).sum()

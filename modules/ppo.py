"""Proximal policy optimisation: the clipped policy gradient with a critic of its own (Schulman et al. 2017).

An iteration, from top to bottom: `estimate` asks critic and reference about the sampled episodes; `credit` makes
advantages of rewards and values; `token_channels` makes returns of them and whitens them; `training_step` has both
losses, of which `modules.grpo` holds the policy's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch
from envs.types import Episode
from modules.critic import new_critic, token_values
from modules.estimates import token_estimates
from modules.functional.advantages import batch_normalize
from modules.functional.credit import Credit, CreditInputs, Estimates, gae
from modules.functional.gae import explained_variance, value_sums
from modules.functional.losses import Aggregate, clipped_value_loss, clipped_values
from modules.grpo import GRPO
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.reward_model.model import RewardModel
from modules.sharding import full_state, whole
from modules.training import Loss, TrainingError


class PPO(GRPO):
    """Trains a policy, and a critic that says what its states are worth; a question needs one episode alone.

    The Trainer's `gradient_clip_val` bounds the gradient of each on its own.

    Args:
        critic: what the critic begins at, always as a copy: a policy, or what another run wrote to `critic/`
            (`modules.reward_model.model:load_reward_model`); None is the policy as it is now. It trains all its
            weights, also where `lora` trains adapters of the policy.
        critic_lr: the critic's learning rate, on the optimiser's schedule; the papers take ten times the policy's.
        credit: a credit function that reads the critic's values.
        value_clip: how far from its value at the rollout a value may move before it has no gradient.
        whiten: normalise the advantages by mean and standard deviation over all policy tokens of an iteration.
        kl_weight: weight of the divergence from `reference` in the loss. In the reward it is the credit's `kl_weight`.

    The other arguments are those of `modules.grpo:GRPO`.

    Raises:
        ConfigError: a setting is out of range, or the critic does not read the policy's ids.
    """

    smallest_group = 1  # the critic is what an episode is compared with

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        critic_lr: float,
        critic: Policy | RewardModel | None = None,
        credit: Credit = gae,
        value_clip: float = 0.5,
        whiten: bool = True,
        temperature: float = 1.0,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        aggregate: Aggregate = "token_mean",
        importance_cap: float | None = None,
        kl_weight: float = 0.0,
        entropy_weight: float = 0.0,
        reference: Policy | None = None,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if not 0 < critic_lr < math.inf or value_clip <= 0:
            raise ConfigError(f"critic_lr {critic_lr}, value_clip {value_clip}: both must be > 0")
        made = new_critic(policy if critic is None else critic, policy)  # before the policy gets adapters
        super().__init__(
            policy,
            optimizer,
            credit=credit,
            temperature=temperature,
            clip_low=clip_low,
            clip_high=clip_high,
            aggregate=aggregate,
            importance_cap=importance_cap,
            kl_weight=kl_weight,
            entropy_weight=entropy_weight,
            reference=reference,
            lora=lora,
            gradient_checkpointing=gradient_checkpointing,
        )
        self.critic, self.critic_model, self.head = made, made.policy.model.train(), made.head
        if gradient_checkpointing:
            self.critic_model.gradient_checkpointing_enable({"use_reentrant": False})
        self.critic_lr, self.value_clip, self.whiten = critic_lr, value_clip, whiten

    def losses(self) -> dict[str, Loss]:
        return {"policy": Loss((self.model,)), "value": Loss((self.critic_model, self.head), self.critic_lr)}

    def estimate(self, episodes: Sequence[Episode]) -> Estimates:
        """The critic's values and the reference's log-probs of the sampled tokens.

        Raises:
            TrainingError: a value is not finite.
        """
        values_BT = token_estimates(partial(token_values, self.critic), episodes, self.device)
        if lost := int((~values_BT.isfinite()).sum()):
            raise TrainingError(
                f"iteration {self.current_epoch}: {lost} of the critic's {values_BT.numel()} values are not finite: "
                "lower critic_lr, or begin at another critic"
            )
        return dataclasses.replace(super().estimate(episodes), values_BT=values_BT)

    def trained_episodes(self, inputs: CreditInputs, advantages_BT: Tensor) -> Tensor:
        """Which episodes train, `[B]` bool: those all of whose rewards are known, for a return is their sum."""
        steps_BS = inputs.step_rewards_BS.masked_fill(~inputs.step_mask_BS, 0.0)
        return inputs.outcome_B.isfinite() & steps_BS.isfinite().all(dim=1)

    def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
        assert inputs.values_BT is not None
        assert inputs.trained_BT is not None
        mask_BT = inputs.trained_BT & kept_B[:, None]
        returns_BT = (advantages_BT + inputs.values_BT).masked_fill(~mask_BT, 0.0)
        self._log_values(inputs.sum_over_ranks(value_sums(inputs.values_BT, returns_BT, mask_BT)))
        if self.whiten:
            advantages_BT = batch_normalize(advantages_BT, mask_BT, sum_over_ranks=inputs.sum_over_ranks)
        channels = super().token_channels(inputs, advantages_BT, kept_B)
        return channels | {"values": inputs.values_BT, "returns": returns_BT}

    def training_step(self, batch: SequenceBatch, index: int) -> Tensor:
        mask_BT, clip = batch.loss_mask_BT, self.value_clip
        old_BT, returns_BT = batch.channels["values"], batch.channels["returns"]
        values_BT = token_values(self.critic, batch)
        # `mean_losses` divides, each loss by its own count of all ranks and batches.
        total = clipped_value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=clip, denominator=1.0)
        clipped_BT = clipped_values(values_BT.detach(), old_BT, returns_BT, clip=clip)
        self._log_token_mean("critic/clip_ratio", clipped_BT, mask_BT)
        policy = self.policy_loss(batch, index)
        return self.mean_losses({"policy": (policy, self._count(batch)), "value": (total, mask_BT.sum())})

    def _log_values(self, sums: Tensor) -> None:
        """Of the tokens of an iteration, before the critic learns from them."""
        means = {"critic/values/mean": sums[1] / sums[0], "critic/returns/mean": sums[2] / sums[0]}
        self.log_dict(means | {"critic/explained_variance": explained_variance(sums)})

    def export(self, folder: Path) -> None:
        """Write the trained policy to `folder/model`, and the critic to `folder/critic` for a run to begin at."""
        super().export(folder)
        state, head = full_state(self.critic_model), full_state(self.head)
        if state:
            self.critic.with_weights(whole(self.critic_model, state), head).save(folder / "critic")

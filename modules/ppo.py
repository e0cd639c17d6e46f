"""Proximal policy optimisation: the clipped policy gradient with a critic of its own (Schulman et al. 2017).

`estimate` asks critic and reference about the sampled episodes; `credit` makes advantages of rewards and values;
`token_channels` makes returns of them and whitens them; `training_step` has both losses, the policy's as in
`modules.grpo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from envs.packing import SequenceBatch
from envs.types import Episode
from modules.critic import ActorCritic, new_critic
from modules.functional.advantages import batch_normalize
from modules.functional.credit import Credit, gae_credit
from modules.functional.credit_inputs import CreditInputs
from modules.functional.losses import Aggregate
from modules.grpo import GRPO
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.reward_model.model import RewardModel
from modules.training import Loss


class PPO(ActorCritic, GRPO):
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
        credit: Credit = gae_credit,
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
        self.add_critic(made, critic_lr, value_clip, whiten, gradient_checkpointing)

    def losses(self) -> dict[str, Loss]:
        return {"policy": Loss((self.model,)), "value": self.critic_loss()}

    def estimate(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """The critic's values and the reference's log-probs of the sampled tokens."""
        values_BT = self.values(episodes)
        return super().estimate(episodes) | {"values_BT": values_BT}

    def trained_episodes(self, inputs: CreditInputs, advantages_BT: Tensor) -> Tensor:
        """Which episodes train, `[B]` bool: those all of whose rewards are known, for a return is their sum."""
        return inputs.total_B.isfinite()

    def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
        values_BT, mask_BT = inputs.critic_values_BT, inputs.trained_BT & kept_B[:, None]
        returns_BT = (advantages_BT + values_BT).masked_fill(~mask_BT, 0.0)
        self.log_values(inputs, returns_BT, mask_BT)
        if self.whiten:
            advantages_BT = batch_normalize(advantages_BT, mask_BT, sum_over_ranks=inputs.sum_over_ranks)
        channels = super().token_channels(inputs, advantages_BT, kept_B)
        return channels | {"values": values_BT, "returns": returns_BT}

    def training_step(self, batch: SequenceBatch, index: int) -> Tensor:
        value = self.value_loss(batch)
        return self.mean_losses({"policy": (self.policy_loss(batch, index), self._count(batch)), "value": value})

    def export(self, folder: Path) -> None:
        """Write the trained policy to `folder/model`, and the critic to `folder/critic` for a run to begin at."""
        super().export(folder)
        self.export_critic(folder / "critic")

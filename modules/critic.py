"""A critic: a reward model that is read before every token that the policy samples, for the value of that state."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch
from envs.token_ids import require_same
from envs.types import Episode
from modules.episode_tensors import token_estimates
from modules.functional.credit_inputs import CreditInputs
from modules.functional.gae import explained_variance, value_sums
from modules.functional.losses import clipped_value_loss, clipped_values
from modules.hidden_states import read_states
from modules.policy import Policy
from modules.policy_gradient import PolicyGradient
from modules.reward_model.model import RewardModel, freeze_unused_output, untrained_reward_model
from modules.sequence_logprobs import before, to_tokens, trained_places
from modules.sharding import full_state, whole
from modules.training import Loss, TrainingError


def new_critic(start: Policy | RewardModel, policy: Policy) -> RewardModel:
    """A critic of a policy's states: a fully trainable copy of `start`, which itself stays unchanged.

    Args:
        start: a critic that another run wrote to `critic/`, or a language model. The latter gets a head that gives 0.

    Raises:
        ConfigError: its tokenizer is not the policy's, or its head reads features of steps.
    """
    model = untrained_reward_model(start) if isinstance(start, Policy) else start
    require_same(model.policy.tokenizer, policy.tokenizer, "critic and policy")
    if model.head.features is not None:
        raise ConfigError("the critic's head reads features of steps: give a reward model without features")
    backbone = Policy(copy.deepcopy(model.policy.model).requires_grad_(True), model.policy.tokenizer)
    head = copy.deepcopy(model.head)
    head.linear.requires_grad_(True)
    head.zero.requires_grad_(True)
    freeze_unused_output(backbone)
    return RewardModel(backbone, head)


def token_values(critic: RewardModel, batch: SequenceBatch) -> Tensor:
    """`[B, T]` float32: the value of the state that each trained token was sampled in, 0 elsewhere.

    That state is read at the token before, where the policy chose.
    """
    places = trained_places(batch)

    def read(hidden_BTD: Tensor) -> Tensor:
        return critic.head(before(hidden_BTD, places))

    return to_tokens(read_states(critic.policy.model, batch.ids_BT, read), places, batch)


class ActorCritic(PolicyGradient):
    """Base of modules whose credit reads the values of a critic that they train; `modules.ppo:PPO` has its settings."""

    critic: RewardModel
    critic_lr: float
    value_clip: float
    whiten: bool

    def add_critic(self, critic: RewardModel, lr: float, clip: float, whiten: bool, checkpointing: bool) -> None:
        """Train this critic, made by `new_critic`, together with the policy.

        Raises:
            ConfigError: a setting is out of range.
        """
        if not 0 < lr < math.inf or clip <= 0:
            raise ConfigError(f"critic_lr {lr}, value_clip {clip}: both must be > 0")
        self.critic, self.critic_model, self.head = critic, critic.policy.model.train(), critic.head
        if checkpointing:
            self.critic_model.gradient_checkpointing_enable({"use_reentrant": False})
        self.critic_lr, self.value_clip, self.whiten = lr, clip, whiten

    def critic_loss(self) -> Loss:
        """The critic's part of `losses`."""
        return Loss((self.critic_model, self.head), self.critic_lr)

    def values(self, episodes: Sequence[Episode]) -> Tensor:
        """`[B, T]`: the critic's values of the sampled tokens.

        Raises:
            TrainingError: one is not finite.
        """
        values_BT = token_estimates(partial(token_values, self.critic), episodes, self.device)
        if lost := int((~values_BT.isfinite()).sum()):
            raise TrainingError(
                f"iteration {self.current_epoch}: {lost} of the critic's {values_BT.numel()} values are not finite: "
                "lower critic_lr, or begin at another critic"
            )
        return values_BT

    def log_values(self, inputs: CreditInputs, returns_BT: Tensor, mask_BT: Tensor) -> None:
        """Log means and explained variance over these tokens of all ranks, before the critic learns from them."""
        sums = inputs.sum_over_ranks(value_sums(inputs.critic_values_BT, returns_BT, mask_BT))
        means = {"critic/values/mean": sums[1] / sums[0], "critic/returns/mean": sums[2] / sums[0]}
        self.log_dict(means | {"critic/explained_variance": explained_variance(sums)})

    def value_loss(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """The sum of the critic's losses over the tokens of its rows, and their count."""
        mask_BT, clip = batch.loss_mask_BT, self.value_clip
        old_BT, returns_BT = batch.channels["values"], batch.channels["returns"]
        values_BT = token_values(self.critic, batch)
        # `mean_losses` divides, each loss by its own count of all ranks and batches.
        total = clipped_value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=clip, denominator=1.0)
        clipped_BT = clipped_values(values_BT.detach(), old_BT, returns_BT, clip=clip)
        self.log_token_means({"critic/clip_ratio": clipped_BT}, mask_BT)
        return total, mask_BT.sum()

    def export_critic(self, folder: Path) -> None:
        """Write the critic for a run to begin at; called on every rank, rank 0 writes."""
        state, head = full_state(self.critic_model), full_state(self.head)
        if state:
            self.critic.with_weights(whole(self.critic_model, state), head).save(folder)

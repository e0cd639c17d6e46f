"""PPO of several agents at once, with one critic that sees what they share (SIRAG).

An iteration, from top to bottom: `estimate` asks the critic, which reads the joint state in place of an agent's own
context; `credit` gives every action its advantage; `token_channels` whitens them agent by agent; `rows` makes the
training rows, each for one agent or for the critic; `training_step` has a loss for every agent and one for the critic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from common.errors import ConfigError
from envs.packing import PackedSequence, SequenceBatch
from envs.types import Episode
from modules.critic import new_critic, token_values
from modules.estimates import token_estimates
from modules.functional.advantages import batch_normalize
from modules.functional.credit import Credit, CreditInputs, Estimates, tree_gae
from modules.functional.gae import explained_variance, value_sums
from modules.functional.losses import (
    clipped_policy_loss,
    clipped_tokens,
    clipped_value_loss,
    clipped_values,
    k3_divergence,
    masked_total,
)
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy, separate
from modules.reference import frozen_reference, reference_logprobs
from modules.reward_model.model import RewardModel
from modules.sequence_logprobs import logprobs_and_entropy
from modules.sharding import full_state, whole
from modules.training import BaseTraining, Loss, TrainingError, export_policy
from modules.training_rows import training_rows
from systems.sirag.agent_views import counted_once, keeping, only, tokens_of, unknown_turns

VALUE = "value"  # the critic's loss and the owner of its rows, beside the agents' names
JointState = Callable[[Episode, int], tuple[int, ...]]  # of an episode and the number of a turn


class JointPPO(BaseTraining):
    """Trains several agents, each on its own turns alone, and one critic on the turns of all of them.

    Every optimiser step steps all of them, also where a batch has no turn of an agent: its loss is then 0. An agent
    without a policy here is frozen. Each loss has its own count of tokens, its own gradient norm and clipping.

    Args:
        policies: by agent. Agents that begin at the same model get models of their own: copies or, with `lora`, an
            adapter each on one set of frozen weights (under FSDP2 each agent has shards of its own of these).
        state: the token ids of what all agents together know before a turn, and of whose turn it is. The critic reads
            them in place of the agent's context, then the agent's tokens.
        critic: what the critic begins at, always as a copy: a policy, or what another run wrote to `critic/`; None is
            the first agent's policy as it is now. It trains all its weights.
        critic_lr: the critic's learning rate, on the optimiser's schedule.
        credit: a credit function that reads the critic's values.
        value_clip: how far from its value at the rollout a value may move before it has no gradient.
        whiten: normalise each agent's advantages by mean and standard deviation over all its tokens of an iteration;
            a turn that several episodes share counts once.
        temperature: of the log-probs in the loss; the samplers of all agents here must have the same.
        clip_low: how far below 1 the ratio to the sampling policy counts.
        clip_high: how far above.
        kl_weight: weight of the divergence (k3) of each agent from the policy that it begins at, in its loss.
        lora: train adapters in place of the agents' weights.

    Raises:
        ConfigError: a setting is out of range, or the critic does not read the agents' ids.
    """

    smallest_group = 1
    resample_rounds = 0
    corrects = False

    def __init__(
        self,
        policies: Mapping[str, Policy],
        optimizer: Optimizer,
        *,
        state: JointState,
        critic_lr: float,
        critic: Policy | RewardModel | None = None,
        credit: Credit = tree_gae,
        value_clip: float = 0.5,
        whiten: bool = True,
        temperature: float = 1.0,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        kl_weight: float = 0.0,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if not policies or VALUE in policies:
            raise ConfigError(f"policies of {list(policies)}: give at least one agent's, none of them named {VALUE}")
        if min(temperature, clip_high, value_clip) <= 0 or not 0 < clip_low <= 1 or kl_weight < 0:
            raise ConfigError(
                f"temperature {temperature}, clip_low {clip_low}, clip_high {clip_high}, value_clip {value_clip}, "
                f"kl_weight {kl_weight}: all but the last must be > 0, clip_low <= 1, kl_weight >= 0"
            )
        if not 0 < critic_lr < math.inf:
            raise ConfigError(f"critic_lr {critic_lr}: it must be > 0")
        super().__init__(optimizer)
        first = next(iter(policies.values()))
        self.critic = new_critic(first if critic is None else critic, first)
        self.policy: dict[str, Policy] = separate(policies, shared=lora is not None)
        self.references: dict[str, Policy] = {}
        for agent, policy in self.policy.items():
            if kl_weight:
                self.references[agent] = frozen_reference(policy, policy, lora)
            if lora is not None:
                lora.apply(policy)
        self.model = nn.ModuleDict({agent: policy.model for agent, policy in self.policy.items()})
        self.critic_model, self.head = self.critic.policy.model, self.critic.head
        for model in (*self.model.values(), self.critic_model):
            if gradient_checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})  # pyright: ignore
            model.train()
        self.state, self.credit, self.critic_lr, self.value_clip = state, credit, critic_lr, value_clip
        self.whiten, self.temperature, self.kl_weight = whiten, temperature, kl_weight
        self.clip_low, self.clip_high = clip_low, clip_high

    def losses(self) -> dict[str, Loss]:
        agents = {agent: Loss((policy.model,)) for agent, policy in self.policy.items()}
        return agents | {VALUE: Loss((self.critic_model, self.head), self.critic_lr)}

    def estimate(self, episodes: Sequence[Episode]) -> Estimates:
        """The critic's values of the agents' tokens and, with a `kl_weight`, each agent's first policy's log-probs.

        Raises:
            TrainingError: a value is not finite.
        """
        seen = [self._seen(episode) for episode in episodes]
        values_BT = token_estimates(partial(token_values, self.critic), seen, self.device)
        if lost := int((~values_BT.isfinite()).sum()):
            raise TrainingError(
                f"iteration {self.current_epoch}: {lost} of the critic's {values_BT.numel()} values are not finite: "
                "lower critic_lr, or begin at another critic"
            )
        logps_BT = None
        for agent in self.references:
            own = [only(agent, episode) for episode in episodes]
            own_BT = token_estimates(partial(self._reference_logprobs, agent), own, self.device)
            logps_BT = own_BT if logps_BT is None else logps_BT + own_BT
        return Estimates(values_BT=values_BT, reference_logps_BT=logps_BT)

    def trained_episodes(self, inputs: CreditInputs, advantages_BT: Tensor) -> Tensor:
        """Which episodes train, `[B]` bool: those whose outcome is known."""
        return inputs.outcome_B.isfinite()

    def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
        assert inputs.values_BT is not None
        once_BT, owned_BT = counted_once(inputs, kept_B), torch.zeros_like(kept_B[:, None])
        returns_BT, whitened_BT = advantages_BT + inputs.values_BT, torch.zeros_like(advantages_BT)
        for agent in self.policy:
            own_BT = tokens_of(agent, inputs)
            owned_BT = owned_BT | own_BT
            if self.whiten:
                counted = {"sum_over_ranks": inputs.sum_over_ranks, "counted": own_BT & once_BT}
                whitened_BT += batch_normalize(advantages_BT, own_BT, **counted)
        sums = inputs.sum_over_ranks(value_sums(inputs.values_BT, returns_BT, once_BT & owned_BT))
        means = {"critic/values/mean": sums[1] / sums[0], "critic/returns/mean": sums[2] / sums[0]}
        self.log_dict(means | {"critic/explained_variance": explained_variance(sums)})
        channels = {"advantages": whitened_BT if self.whiten else advantages_BT}
        if inputs.reference_logps_BT is not None:
            channels["reference_logps"] = inputs.reference_logps_BT
        return channels | {"values": inputs.values_BT, "returns": returns_BT}

    def rows(
        self, episodes: Sequence[Episode], inputs: CreditInputs, kept_B: Tensor, channels: Mapping[str, Tensor]
    ) -> list[list[PackedSequence]]:
        """The rows of each episode: its turns by agent in their own contexts, and all of them in the critic's.

        An episode's weight multiplies its advantages. An action whose process reward is unknown trains nothing.
        """
        weights_B1 = torch.tensor([episode.weight for episode in episodes])[:, None]
        channels = {**channels, "advantages": channels["advantages"] * weights_B1}
        unknown = unknown_turns(inputs)
        known = [keeping(lambda turn: turn.uid not in unknown, episode) for episode in episodes]
        views = {agent: [only(agent, episode) for episode in known] for agent in self.policy}
        views[VALUE] = [self._seen(episode) for episode in known]
        rows: list[list[PackedSequence]] = [[] for _ in episodes]
        for owner, view in views.items():
            for own, more in zip(rows, training_rows(view, kept_B.tolist(), channels), strict=True):
                own += [replace(row, owner=owner) for row in more]
        return rows

    def training_step(self, batch: SequenceBatch, index: int) -> Tensor:
        sums = {agent: self.policy_loss(agent, batch.of(agent), index) for agent in self.policy}
        return self.mean_losses(sums | {VALUE: self.value_loss(batch.of(VALUE))})

    def policy_loss(self, agent: str, batch: SequenceBatch, index: int) -> tuple[Tensor, Tensor]:
        """The sum of an agent's losses over the tokens of its rows, and their count."""
        mask_BT, advantages_BT = batch.loss_mask_BT, batch.channels["advantages"]
        old_BT, low, high = batch.logps_BT, self.clip_low, self.clip_high
        logps_BT, entropy_BT = logprobs_and_entropy(self.policy[agent].model, batch, self.temperature)
        total = clipped_policy_loss(
            logps_BT, old_BT, advantages_BT, mask_BT, clip_low=low, clip_high=high, denominator=1.0
        )
        divergence_BT = k3_divergence(logps_BT, batch.channels.get("reference_logps", old_BT))
        if self.kl_weight:
            total = total + self.kl_weight * masked_total(divergence_BT, mask_BT, "token_mean")
        with torch.no_grad():
            low_BT, high_BT = clipped_tokens(logps_BT, old_BT, advantages_BT, clip_low=low, clip_high=high)
            means = {"entropy": entropy_BT, "kl": divergence_BT, "clip_ratio/region_mean": low_BT | high_BT}
            if index < self.trainer.accumulate_grad_batches:  # in later updates the weights are not those that sampled
                gap_BT = (logps_BT - old_BT).abs()
                means |= {"logp_gap/mean": gap_BT, "logp_gap/kl": k3_divergence(old_BT, logps_BT)}
                largest = gap_BT[mask_BT].max() if mask_BT.any() else gap_BT.new_zeros(())
                for name in ("logp_gap/max", f"logp_gap/max/{agent}"):
                    self.log(name, largest, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
            for name, values_BT in means.items():
                self._log_token_mean(name, values_BT, mask_BT)
                self._log_token_mean(f"{name}/{agent}", values_BT, mask_BT)
        return total, mask_BT.sum()

    def value_loss(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """The sum of the critic's losses over the tokens of its rows, and their count."""
        mask_BT, clip = batch.loss_mask_BT, self.value_clip
        old_BT, returns_BT = batch.channels["values"], batch.channels["returns"]
        values_BT = token_values(self.critic, batch)
        clipped_BT = clipped_values(values_BT.detach(), old_BT, returns_BT, clip=clip)
        self._log_token_mean("critic/clip_ratio", clipped_BT, mask_BT)
        return clipped_value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=clip, denominator=1.0), mask_BT.sum()

    def export(self, folder: Path) -> None:
        """Write each agent's policy to `folder/model/<agent>` and the critic to `folder/critic`.

        Adapters are also written alone, to `folder/adapter/<agent>`.
        """
        for agent, policy in self.policy.items():
            export_policy(policy, folder / "model" / agent, folder / "adapter" / agent)
        state, head = full_state(self.critic_model), full_state(self.head)
        if state:
            self.critic.with_weights(whole(self.critic_model, state), head).save(folder / "critic")

    def _reference_logprobs(self, agent: str, batch: SequenceBatch) -> Tensor:
        """`[B, T]`: what the policy that an agent begins at says of its tokens."""
        return reference_logprobs(self.references[agent], self.policy[agent].model, batch, self.temperature)

    def _seen(self, episode: Episode) -> Episode:
        """An episode as the critic reads it: the agents' turns, each after the joint state before it."""
        own = keeping(lambda turn: turn.agent in self.policy, episode)
        turns = [
            replace(turn, opening_ids=(), context_ids=self.state(episode, number)) if turn.trainable else turn
            for number, turn in enumerate(own.turns)
        ]
        return replace(own, turns=turns)

    def _log_token_mean(self, name: str, values_BT: Tensor, mask_BT: Tensor) -> None:
        """A mean over the trained tokens of the iteration; over those of all agents, where several log one name."""
        tokens = int(mask_BT.sum())  # 0 in a forward pass that an update does not need: it has no weight
        mean = values_BT[mask_BT].float().sum() / max(tokens, 1)
        self.log(name, mean, on_step=False, on_epoch=True, sync_dist=True, batch_size=tokens)

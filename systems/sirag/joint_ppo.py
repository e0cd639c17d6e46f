"""PPO of several agents at once, with one critic that sees what they share (SIRAG).

An iteration, from top to bottom: `estimate` asks the critic, which reads the joint state in place of an agent's own
context; `credit` gives every action its advantage; `token_channels` whitens them agent by agent; `rows` makes the
training rows, each for one agent or for the critic; `training_step` has a loss for every agent, that of
`modules.policy_gradient`, and one for the critic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from common.errors import ConfigError
from envs.packing import PackedSequence, SequenceBatch
from envs.types import Episode
from modules.critic import ActorCritic, new_critic
from modules.episode_tensors import token_estimates
from modules.functional.advantages import batch_normalize
from modules.functional.credit import Credit, tree_gae_credit
from modules.functional.credit_inputs import CreditInputs
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy, separate
from modules.reference import frozen_reference, reference_logprobs
from modules.reward_model.model import RewardModel
from modules.training import Loss, export_policy
from modules.training_rows import training_rows
from systems.sirag.agent_views import counted_once, keeping, only, tokens_of, unknown_turns

VALUE = "value"  # the critic's loss and the owner of its rows, beside the agents' names
JointState = Callable[[Episode, int], tuple[int, ...]]  # of an episode and the number of a turn


class JointPPO(ActorCritic):
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

    def __init__(
        self,
        policies: Mapping[str, Policy],
        optimizer: Optimizer,
        *,
        state: JointState,
        critic_lr: float,
        critic: Policy | RewardModel | None = None,
        credit: Credit = tree_gae_credit,
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
        super().__init__(optimizer)
        self.set_loss(temperature, clip_low, clip_high, kl_weight)
        self.state, self.credit = state, credit
        first = next(iter(policies.values()))
        made = new_critic(first if critic is None else critic, first)  # before the policies get adapters
        self.policy: dict[str, Policy] = separate(policies, shared=lora is not None)
        self.references: dict[str, Policy] = {}
        for agent, policy in self.policy.items():
            if kl_weight:
                self.references[agent] = frozen_reference(policy, policy, lora)
            if lora is not None:
                lora.apply(policy)
        self.model = nn.ModuleDict({agent: policy.model for agent, policy in self.policy.items()})
        for model in self.model.values():
            if gradient_checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})  # pyright: ignore
            model.train()
        self.add_critic(made, critic_lr, value_clip, whiten, gradient_checkpointing)

    def losses(self) -> dict[str, Loss]:
        agents = {agent: Loss((policy.model,)) for agent, policy in self.policy.items()}
        return agents | {VALUE: self.critic_loss()}

    def estimate(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """The critic's values of the agents' tokens and, with a `kl_weight`, each agent's first policy's log-probs."""
        estimates = {"values_BT": self.values([self._seen(episode) for episode in episodes])}
        for agent, reference in self.references.items():
            ask = partial(reference_logprobs, reference, self.policy[agent].model, temperature=self.temperature)
            own_BT = token_estimates(ask, [only(agent, episode) for episode in episodes], self.device)
            before_BT = estimates.get("reference_logps_BT")
            estimates["reference_logps_BT"] = own_BT if before_BT is None else before_BT + own_BT
        return estimates

    def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
        values_BT, once_BT = inputs.critic_values_BT, counted_once(inputs, kept_B)
        owned_BT, whitened_BT = torch.zeros_like(kept_B[:, None]), torch.zeros_like(advantages_BT)
        for agent in self.policy:
            own_BT = tokens_of(agent, inputs)
            owned_BT = owned_BT | own_BT
            if self.whiten:
                counted = {"sum_over_ranks": inputs.sum_over_ranks, "counted": own_BT & once_BT}
                whitened_BT += batch_normalize(advantages_BT, own_BT, **counted)
        returns_BT = advantages_BT + values_BT
        self.log_values(inputs, returns_BT, once_BT & owned_BT)
        channels = super().token_channels(inputs, whitened_BT if self.whiten else advantages_BT, kept_B)
        return channels | {"values": values_BT, "returns": returns_BT}

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
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        for agent in self.policy:
            own = batch.of(agent)
            sums[agent] = self.policy_loss(own, index, agent), own.loss_mask_BT.sum()
        return self.mean_losses(sums | {VALUE: self.value_loss(batch.of(VALUE))})

    def export(self, folder: Path) -> None:
        """Write each agent's policy to `folder/model/<agent>` and the critic to `folder/critic`.

        Adapters are also written alone, to `folder/adapter/<agent>`.
        """
        for agent, policy in self.policy.items():
            export_policy(policy, folder / "model" / agent, folder / "adapter" / agent)
        self.export_critic(folder / "critic")

    def _seen(self, episode: Episode) -> Episode:
        """An episode as the critic reads it: the agents' turns, each after the joint state before it."""
        own = keeping(lambda turn: turn.agent in self.policy, episode)
        turns = [
            replace(turn, opening_ids=(), context_ids=self.state(episode, number)) if turn.trainable else turn
            for number, turn in enumerate(own.turns)
        ]
        return replace(own, turns=turns)

"""A critic: a reward model that is read before every token that the policy samples, for the value of that state."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch
from modules.policy import Policy
from modules.reward_model import RewardModel, freeze_unused_output, untrained_reward_model
from modules.sequence_logprobs import scatter_to_tokens, trained_positions


def new_critic(start: Policy | RewardModel, policy: Policy) -> RewardModel:
    """A critic of a policy's states, all of whose weights train: a copy, so what it begins at stays as it is.

    Args:
        start: a critic that another run wrote to `critic/`, or a language model. The latter gets a head that gives 0.

    Raises:
        ConfigError: its tokenizer is not the policy's, or its head reads log-probabilities.
    """
    model = untrained_reward_model(start) if isinstance(start, Policy) else start
    own, other = model.policy.tokenizer, policy.tokenizer
    if own.get_vocab() != other.get_vocab():
        names = f"{own.name_or_path} and {other.name_or_path}"
        raise ConfigError(f"critic and policy have different tokenizers ({names}): the critic reads the policy's ids")
    if model.head.uses_logps:
        raise ConfigError("the critic's head reads log-probabilities of steps: give a reward model with logp_weight 0")
    backbone = Policy(copy.deepcopy(model.policy.model).requires_grad_(True), own)
    head = copy.deepcopy(model.head)
    head.linear.requires_grad_(True)
    head.zero.requires_grad_(True)
    freeze_unused_output(backbone)
    return RewardModel(backbone, head)


def token_values(critic: RewardModel, batch: SequenceBatch) -> Tensor:
    """`[B, T]` float32: the value of the state that each trained token was sampled in, 0 elsewhere.

    That state is read at the token before, where the policy chose.
    """
    positions_K = trained_positions(batch)
    # The whole model is called, not its backbone: a sharded model gathers its parameters when it is called.
    output = critic.policy.model(input_ids=batch.ids_BT, logits_to_keep=positions_K[:1] - 1, output_hidden_states=True)
    hidden_BKD = output.hidden_states[-1][:, positions_K - 1]
    nothing_BK = torch.zeros(hidden_BKD.shape[:2], device=hidden_BKD.device)
    return scatter_to_tokens(critic.head(hidden_BKD, nothing_BK), positions_K, batch)

"""A critic: a reward model that is read before every token that the policy samples, for the value of that state."""

from __future__ import annotations

import copy

from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch
from modules.hidden_states import read_states
from modules.policy import Policy
from modules.reward_model.model import RewardModel, freeze_unused_output, untrained_reward_model
from modules.sequence_logprobs import before, to_tokens, trained_places


def new_critic(start: Policy | RewardModel, policy: Policy) -> RewardModel:
    """A critic of a policy's states, all of whose weights train: a copy, so what it begins at stays as it is.

    Args:
        start: a critic that another run wrote to `critic/`, or a language model. The latter gets a head that gives 0.

    Raises:
        ConfigError: its tokenizer is not the policy's, or its head reads features of steps.
    """
    model = untrained_reward_model(start) if isinstance(start, Policy) else start
    own, other = model.policy.tokenizer, policy.tokenizer
    if own.get_vocab() != other.get_vocab():
        names = f"{own.name_or_path} and {other.name_or_path}"
        raise ConfigError(f"critic and policy have different tokenizers ({names}): the critic reads the policy's ids")
    if model.head.features is not None:
        raise ConfigError("the critic's head reads features of steps: give a reward model without features")
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
    places = trained_places(batch)

    def read(hidden_BTD: Tensor) -> Tensor:
        return critic.head(before(hidden_BTD, places))

    return to_tokens(read_states(critic.policy.model, batch.ids_BT, read), places, batch)

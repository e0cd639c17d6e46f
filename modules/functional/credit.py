"""Credit functions: from the rewards of an iteration to advantages. A credit function is a component of its module.

No reward is passed over in silence. `dual_granularity`, the functions of `modules.functional.process_credit` and
`tree_gae` weigh step rewards against the outcome; all others maximise the sum of an episode's rewards, outcome and
steps, so without step rewards the outcome alone. A reward of weight 0 is only logged. An episode with an unknown
outcome trains nothing. An unknown step reward leaves out its step where steps are weighed; where rewards are
summed its episode has no advantage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modules.functional import advantages
from modules.functional.gae import generalized_advantages, token_rewards
from modules.functional.process_advantages import Statistics, numbered


class MissingInput(ValueError):
    """A credit function needs what the training module does not give, such as a critic's values."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """What the models of a training module say of the tokens of B episodes; None where the module does not ask.

    As in `CreditInputs`, a token is one of up to T that the policy sampled, in the order of the steps. Those of turns
    that do not train are 0.

    Attributes:
        values_BT: `[B, T]` float32, the critic's value of the state that each token was sampled in.
        reference_logps_BT: `[B, T]` float32, log-probs under the reference policy.
        old_logps_BT: `[B, T]` float32, log-probs under the policy before the update, recomputed because the sampler's
            are another model's.
    """

    values_BT: Tensor | None = None
    reference_logps_BT: Tensor | None = None
    old_logps_BT: Tensor | None = None


def one_rank(sums: Tensor) -> Tensor:
    """What `CreditInputs.sum_over_ranks` is where there is one rank."""
    return sums


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """What a credit function may read of B episodes, the `group_size` episodes of a question side by side.

    A step is one of up to S; a token is one of up to T that the policy sampled, in the order of the steps.

    Attributes:
        step_rewards_BS: `[B, S]` float32, NaN where unscored, 0 outside the mask.
        step_mask_BS: `[B, S]` bool, true where an episode has a step that the policy sampled.
        outcome_B: `[B]` float32, NaN where unscored.
        group_size: episodes a question.
        step_lengths_BS: `[B, S]` int64, sampled tokens of each step.
        step_kinds_BS: B rows of S names, the protocol's own words; empty beyond the last step.
        step_valid_BS: `[B, S]` bool, false on steps out of format.
        step_turns_BS: B rows of S uids of the turns in which the steps begin; empty beyond the last step. Where two
            episodes are paths of one tree, steps that they share have the same.
        step_states_BS: B rows of S names of the states in which the steps begin, as `envs.search_steps` tells them
            apart; empty beyond the last step.
        step_agents_BS: B rows of S names, the agents that wrote the steps; empty beyond the last step.
        trained_BT: `[B, T]` bool, true on tokens of turns that train; false on a frozen agent's, and beyond the last.
        old_logps_BT: `[B, T]` float32, log-probs that the tokens were sampled with, or what `Estimates` has for them.
        values_BT: `[B, T]`, a critic's estimates; None without a critic.
        reference_logps_BT: `[B, T]`, log-probs of the reference policy; None where none were computed.
        sum_over_ranks: adds a tensor up over all ranks. The B episodes are this rank's own: who needs a statistic of
            all calls it, once, and on every rank.
    """

    step_rewards_BS: Tensor
    step_mask_BS: Tensor
    outcome_B: Tensor
    group_size: int
    step_lengths_BS: Tensor | None = None
    step_kinds_BS: tuple[tuple[str, ...], ...] | None = None
    step_valid_BS: Tensor | None = None
    step_turns_BS: tuple[tuple[str, ...], ...] | None = None
    step_states_BS: tuple[tuple[str, ...], ...] | None = None
    step_agents_BS: tuple[tuple[str, ...], ...] | None = None
    trained_BT: Tensor | None = None
    old_logps_BT: Tensor | None = None
    values_BT: Tensor | None = None
    reference_logps_BT: Tensor | None = None
    sum_over_ranks: Callable[[Tensor], Tensor] = one_rank


Credit = Callable[[CreditInputs], Tensor]  # advantages [B, S], the same for all tokens of a step, or [B, T]


def dual_granularity(
    inputs: CreditInputs, *, beta: float = 0.3, statistics: Statistics = "step", scale: bool = True
) -> Tensor:
    """ProRAG's credit, `[B, S]`: outcome advantage plus `beta` times process advantage.

    `statistics` says which steps a step is compared with; `kind` and `kind_index` compare steps of one kind alone.
    `scale: false` does not divide the process advantage by a deviation. Both are explained at
    `modules.functional.process_advantages.process_advantages`. Source: ProRAG Eqs 7 and 8.
    """
    lengths_BS, kinds = inputs.step_lengths_BS, inputs.step_kinds_BS
    return advantages.dual_granularity(
        inputs.step_rewards_BS,
        inputs.step_mask_BS,
        inputs.outcome_B,
        group_size=inputs.group_size,
        beta=beta,
        statistics=statistics,
        step_lengths_BS=None if lengths_BS is None else lengths_BS.float(),
        step_kinds_BS=None if kinds is None else numbered(kinds, inputs.group_size),
        step_valid_BS=inputs.step_valid_BS,
        scale=scale,
    )


def grpo(inputs: CreditInputs, *, scale: bool = True, eps: float = 1e-6) -> Tensor:
    """GRPO's credit, `[B, S]`: an episode's rewards compared with those of its group, the same for all its steps.

    `scale: false` does not divide by the group's deviation (Dr. GRPO). `modules.functional.advantages.grpo` has both.
    """
    return _to_steps(advantages.grpo(_sums(inputs), group_size=inputs.group_size, scale=scale, eps=eps), inputs)


def rloo(inputs: CreditInputs) -> Tensor:
    """RLOO's credit, `[B, S]`: an episode's rewards less the mean of the group's others, the same for all its steps."""
    return _to_steps(advantages.leave_one_out(_sums(inputs), group_size=inputs.group_size), inputs)


def return_to_go(inputs: CreditInputs) -> Tensor:
    """`[B, S]`: the rewards from a step on, the outcome on the last, less the mean of what the group's others get then.

    An action has no credit for rewards before it. Explained at `modules.functional.advantages.return_to_go`.
    """
    mask_BS = inputs.step_mask_BS
    places_S = torch.arange(1, mask_BS.shape[1] + 1)
    last_B1 = (mask_BS * places_S).amax(dim=1, keepdim=True) if mask_BS.numel() else places_S
    rewards_BS = torch.where((places_S == last_B1) & mask_BS, inputs.outcome_B[:, None], 0.0) + inputs.step_rewards_BS
    return advantages.return_to_go(rewards_BS, mask_BS, group_size=inputs.group_size)


def reinforce_pp(inputs: CreditInputs, *, kl_weight: float = 0.0, eps: float = 1e-8) -> Tensor:
    """REINFORCE++'s credit, `[B, T]`: the rewards from a token on, normalised over all tokens of all ranks.

    A step's reward lies on its last token, the outcome on the episode's last, and on each token -`kl_weight` times
    (log-prob it was sampled with - log-prob of the reference): the divergence as a reward. There is no comparison
    within a group. Source: REINFORCE++, arXiv 2501.03262.

    Raises:
        MissingInput: a `kl_weight` without log-probs of a reference.
    """
    lengths_BS, trained_BT = inputs.step_lengths_BS, inputs.trained_BT
    if lengths_BS is None or trained_BT is None:
        raise MissingInput("reinforce_pp needs step_lengths_BS and trained_BT")
    rewards_BS = inputs.step_rewards_BS.masked_fill(~inputs.step_mask_BS, 0.0)
    rewards_BT = token_rewards(rewards_BS, lengths_BS, inputs.outcome_B, trained_BT)
    if kl_weight:
        if inputs.reference_logps_BT is None or inputs.old_logps_BT is None:
            raise MissingInput("reinforce_pp with a kl_weight needs a reference: give one to the module")
        gaps_BT = inputs.old_logps_BT - inputs.reference_logps_BT
        rewards_BT = rewards_BT - kl_weight * gaps_BT.masked_fill(~trained_BT, 0.0)
    returns_BT = rewards_BT.flip(1).cumsum(dim=1).flip(1)
    known_BT = trained_BT & returns_BT.isfinite().all(dim=1, keepdim=True)
    return advantages.batch_normalize(returns_BT, known_BT, sum_over_ranks=inputs.sum_over_ranks, eps=eps)


def gae(inputs: CreditInputs, *, gamma: float = 1.0, lam: float = 1.0, kl_weight: float = 0.0) -> Tensor:
    """PPO's credit, `[B, T]`: generalised advantages over policy tokens, from rewards on tokens and a critic's values.

    A step's reward lies on its last policy token, the outcome on the episode's last, and on each token -`kl_weight`
    times (log-prob it was sampled with - log-prob of the reference). The rewards of an episode must all be known.

    Raises:
        MissingInput: there are no values, or a `kl_weight` but no log-probs of a reference.
    """
    mask_BT, lengths_BS, values_BT = inputs.trained_BT, inputs.step_lengths_BS, inputs.values_BT
    if mask_BT is None or lengths_BS is None or values_BT is None:
        raise MissingInput("credit gae reads a critic's values: train with modules.ppo:PPO")
    steps_BS = inputs.step_rewards_BS.masked_fill(~inputs.step_mask_BS, 0.0)
    known_BT = mask_BT & (inputs.outcome_B.isfinite() & steps_BS.isfinite().all(dim=1))[:, None]
    rewards_BT = token_rewards(steps_BS, lengths_BS, inputs.outcome_B, mask_BT)
    if kl_weight:
        if inputs.reference_logps_BT is None or inputs.old_logps_BT is None:
            raise MissingInput("credit gae with a kl_weight needs the log-probs of a reference: give the module one")
        rewards_BT = rewards_BT - kl_weight * (inputs.old_logps_BT - inputs.reference_logps_BT)
    return generalized_advantages(rewards_BT, values_BT, known_BT, gamma=gamma, lam=lam)[0]


def tree_credit(
    leaf_rewards: Tensor | Sequence[float], process: Tensor | float, *, alpha: float = 0.5, beta: float = 0.5
) -> Tensor:
    """What an action of a tree is worth, a scalar: `alpha` * mean leaf reward + `beta` * process reward (SIRAG).

    Args:
        leaf_rewards: `[L]`, outcomes of the episodes that the action led to; it is in all their paths.
        process: how reasonable the action itself was, in [0, 1].

    Where one of the two is unknown (NaN) and its weight is not 0, the credit is unknown.
    """
    credit = torch.zeros(())
    if alpha:
        credit = credit + alpha * torch.as_tensor(leaf_rewards, dtype=torch.float32).mean()
    if beta:
        credit = credit + beta * torch.as_tensor(process, dtype=torch.float32).reshape(())
    return credit


def tree_gae(
    inputs: CreditInputs, *, alpha: float = 0.5, beta: float = 0.5, gamma: float = 1.0, lam: float = 0.95
) -> Tensor:
    """SIRAG's credit, `[B, T]`: `tree_credit` on the last token of an action, generalised over its own tokens.

    An action is the part of a step that one agent wrote. Its credit holds the mean outcome of all that it led to, so
    nothing that follows is added, neither later credits nor the value of the next state. An action that is in several
    episodes has the same advantage in all of them. Where none of its leaves has a known outcome, or its process reward
    is unknown, it has none (0).

    Raises:
        MissingInput: there are no values, or no turns of the steps.
    """
    mask_BT, lengths_BS, values_BT = inputs.trained_BT, inputs.step_lengths_BS, inputs.values_BT
    if mask_BT is None or lengths_BS is None or values_BT is None or inputs.step_turns_BS is None:
        raise MissingInput("credit tree_gae reads a critic's values: train with systems.sirag.joint_ppo:JointPPO")
    credits_BS = _tree_credits(inputs, inputs.step_turns_BS, alpha, beta)
    known_BS = credits_BS.isfinite()
    rewards_BS = credits_BS.masked_fill(~known_BS, 0.0)
    ends_BS = lengths_BS.cumsum(dim=1)
    places_T = torch.arange(mask_BT.shape[1])
    advantages_BT = torch.zeros_like(values_BT)
    for s in range(lengths_BS.shape[1]):
        inside_BT = (places_T >= (ends_BS - lengths_BS)[:, s, None]) & (places_T < ends_BS[:, s, None])
        own_BT = inside_BT & mask_BT & known_BS[:, s, None]
        rewards_BT = rewards_BS[:, s, None] * (own_BT & (own_BT.cumsum(1) == own_BT.sum(1, keepdim=True)))
        advantages_BT += generalized_advantages(rewards_BT, values_BT, own_BT, gamma=gamma, lam=lam)[0]
    return advantages_BT


def _tree_credits(inputs: CreditInputs, step_turns_BS: Sequence[Sequence[str]], alpha: float, beta: float) -> Tensor:
    """`[B, S]`: `tree_credit` of every step, NaN where it is unknown."""
    leaves: dict[str, list[float]] = {}
    for turns, outcome in zip(step_turns_BS, inputs.outcome_B, strict=True):
        for turn in set(turns) if outcome.isfinite() else ():
            leaves.setdefault(turn, []).append(float(outcome))
    credits_BS = torch.full(inputs.step_mask_BS.shape, math.nan)
    for row, turns in enumerate(step_turns_BS):
        for column, turn in enumerate(turns):
            if outcomes := leaves.get(turn):
                process = inputs.step_rewards_BS[row, column]
                credits_BS[row, column] = tree_credit(outcomes, process, alpha=alpha, beta=beta)
    return credits_BS.masked_fill(~inputs.step_mask_BS, math.nan)


def _sums(inputs: CreditInputs) -> Tensor:
    """`[B]`: the sum of an episode's rewards; NaN where one is not known."""
    return inputs.outcome_B + inputs.step_rewards_BS.masked_fill(~inputs.step_mask_BS, 0.0).sum(dim=1)


def _to_steps(advantages_B: Tensor, inputs: CreditInputs) -> Tensor:
    """`[B, S]`: an episode's advantage in each of its steps, 0 outside the mask."""
    return advantages_B[:, None] * inputs.step_mask_BS

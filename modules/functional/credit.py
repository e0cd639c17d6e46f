"""Credit functions: from the rewards of an iteration to advantages. A credit function is a component of its module.

A credit function's name ends in `_credit`. Formulas that others use too are pure functions of tensors in
`modules.functional.advantages`, `process_advantages`, `returns` and `gae`, where they are explained; those of trees are
in `modules.functional.tree_credit`.

No reward is passed over in silence. `dual_granularity_credit`, `potential_difference_credit`, `state_gain_credit` and
`tree_gae_credit` weigh step rewards against the outcome, and `turn_returns_credit` normalises both; all others maximise
the sum of an episode's rewards, outcome and steps, so without step rewards the outcome alone. A reward of weight 0 is
only logged. An episode with an unknown outcome trains nothing. An unknown step reward leaves out its step where steps
are weighed; where rewards are summed its episode has no advantage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from modules.functional import advantages
from modules.functional.credit_inputs import CreditInputs, MissingInput
from modules.functional.gae import generalized_advantages, token_rewards
from modules.functional.normalization import less_others
from modules.functional.process_advantages import Statistics, by_set, numbered, process_advantages
from modules.functional.progress_credit import kept_if_answered, progress_advantages
from modules.functional.returns import Normalise, anchor_return, last_steps, turn_returns
from modules.functional.tree_credit import leaf_groups as leaf_groups
from modules.functional.tree_credit import leaf_groups_credit, node_values_credit
from modules.functional.tree_credit import node_values as node_values
from modules.functional.tree_credit import tree_credit as tree_credit
from modules.functional.tree_credit import tree_gae_credit as tree_gae_credit

ScaleRewards = Literal["sum", "each", "apart"]
Credit = Callable[[CreditInputs], Tensor]  # advantages [B, S], the same for all tokens of a step, or [B, T]


def dual_granularity_credit(
    inputs: CreditInputs,
    *,
    beta: float = 0.3,
    statistics: Statistics = "step",
    scale: bool = True,
    scale_rewards: ScaleRewards = "sum",
) -> Tensor:
    """ProRAG's credit, `[B, S]`: outcome advantage plus `beta` times process advantage.

    `statistics` says which steps a step is compared with; `kind` and `kind_index` compare steps of one kind alone.
    `scale: false` does not divide the process advantage by a deviation. Both are explained at
    `modules.functional.process_advantages.process_advantages`. `scale_rewards: each` normalises each outcome reward,
    and not their sum (GDPO, `modules.functional.advantages.scaled_rewards`); `apart` does so within groups alone.
    Source: ProRAG Eqs 7 and 8.
    """
    each = scale_rewards != "sum"
    return advantages.dual_granularity(
        inputs.step_rewards_BS,
        inputs.step_mask_BS,
        inputs.outcome_B,
        group_size=inputs.group_size,
        beta=beta,
        statistics=statistics,
        step_lengths_BS=inputs.step_lengths_BS.float(),
        step_kinds_BS=numbered(inputs.step_kinds_BS, inputs.group_size),
        step_valid_BS=inputs.step_valid_BS,
        scale=scale,
        outcome_advantages_B=(
            _scaled_each(inputs, inputs.outcomes_BR, inputs.outcome_weights_R, scale_rewards) if each else None
        ),
    )


def potential_difference_credit(inputs: CreditInputs, *, beta: float = 0.3) -> Tensor:
    """`[B, S]`: outcome advantage plus `beta` times what a step adds to the potential of its episode.

    That is the potential after the step less that before it. The potential is the reward less the mean of the steps of
    that kind in the question's G episodes (of all steps, for a step out of format, as in `process_advantages`), and 0
    before the first step. So a step is not blamed for errors made before it, and where the reward depends on the kind
    alone every difference is 0. A step has 0 where its own reward is NaN or that of the step before it. There is no
    division by a deviation: where the rewards of a question hardly differ they hardly count.

    Sources: potentials, Ng, Harada and Russell 1999; differences as process rewards, arXiv 2410.08146.
    """
    mask_BS, unknown_BS = _scored(inputs), ~inputs.step_rewards_BS.isfinite()
    potentials_BS = _within_kinds(inputs, mask_BS).masked_fill(unknown_BS, math.nan)
    before_B, gains_BS = torch.zeros_like(inputs.outcome_B), torch.zeros_like(potentials_BS)
    for s in range(potentials_BS.shape[1]):
        gains_BS[:, s] = potentials_BS[:, s] - before_B
        before_B = torch.where(mask_BS[:, s], potentials_BS[:, s], before_B)
    return _with_outcome(inputs, gains_BS.masked_fill(~mask_BS | ~gains_BS.isfinite(), 0.0), beta)


def state_gain_credit(inputs: CreditInputs, *, beta: float = 0.3) -> Tensor:
    """`[B, S]`: outcome advantage plus `beta` times what a step is better than the group's others from its state.

    Rewards are taken less the mean of the steps of their kind in the question's G episodes (of all steps, for a step
    out of format): an answer and a search from one state are compared by how good they are of their kind. A step from a
    state where no other episode was has 0. What a state is, is explained at `envs.search_steps`. There is no division.

    Source: comparison within states, GiGPO, arXiv 2505.10978.
    """
    known_BS = _scored(inputs) & inputs.step_rewards_BS.isfinite()
    deviations_BS = _within_kinds(inputs, known_BS)

    def gains(values_RN: Tensor, weights_RN: Tensor) -> Tensor:
        return less_others(values_RN, weights_RN > 0)

    states_BS, weights_BS = numbered(inputs.step_states_BS, inputs.group_size), known_BS.to(deviations_BS.dtype)
    return _with_outcome(inputs, by_set(gains, deviations_BS, weights_BS, states_BS, inputs.group_size), beta)


def grpo_credit(
    inputs: CreditInputs, *, scale: bool = True, eps: float = 1e-6, scale_rewards: ScaleRewards = "sum"
) -> Tensor:
    """GRPO's credit, `[B, S]`: an episode's rewards compared with those of its group, the same for all its steps.

    `scale: false` does not divide by the group's deviation (Dr. GRPO). `modules.functional.advantages.grpo` has both.
    `scale_rewards: each` normalises each outcome reward, and the sum of step rewards, and not the sum of all (GDPO,
    `modules.functional.advantages.scaled_rewards`); `apart` does so within groups alone. Both always divide.
    """
    if scale_rewards != "sum":
        steps_B1 = (inputs.total_B - inputs.outcome_B)[:, None]
        weights_R = torch.cat([inputs.outcome_weights_R, torch.ones(1)])
        advantages_B = _scaled_each(inputs, torch.cat([inputs.outcomes_BR, steps_B1], dim=1), weights_R, scale_rewards)
    else:
        advantages_B = advantages.grpo(inputs.total_B, group_size=inputs.group_size, scale=scale, eps=eps)
    return advantages_B[:, None] * inputs.step_mask_BS


def rloo_credit(inputs: CreditInputs) -> Tensor:
    """RLOO's credit, `[B, S]`: an episode's rewards less the mean of the group's others, the same for all its steps."""
    return advantages.leave_one_out(inputs.total_B, group_size=inputs.group_size)[:, None] * inputs.step_mask_BS


def return_to_go_credit(inputs: CreditInputs) -> Tensor:
    """`[B, S]`: reward-to-go, the outcome paid on the last step, less the mean of the group's others at that step.

    An action has no credit for rewards before it. Explained at `modules.functional.advantages.return_to_go`.
    """
    return advantages.return_to_go(_paid_on_last(inputs), inputs.step_mask_BS, group_size=inputs.group_size)


def progress_credit(inputs: CreditInputs, *, prior: float = 2.0, gamma: float = 0.9) -> Tensor:
    """`[B, S]`: reward-to-go, the outcome paid on the last step, less what others got from the same progress on.

    For step rewards that are paid once, such as `modules.rewards.hop_progress:progress`. An early answer is blamed for
    what others still get, and an episode without an answer keeps none of them. Others are the question's other
    episodes; the mean of all other episodes of the iteration, on all ranks, counts as `prior` more. It never divides.
    Explained at `modules.functional.progress_credit`.
    """
    answered_B = torch.tensor(["answer" in kinds for kinds in inputs.step_kinds_BS], dtype=torch.bool)
    kept_BS = kept_if_answered(inputs.step_rewards_BS, inputs.step_mask_BS, answered_B)
    return progress_advantages(
        _paid_on_last(replace(inputs, step_rewards_BS=kept_BS)),
        inputs.step_mask_BS,
        group_size=inputs.group_size,
        prior=prior,
        gamma=gamma,
        sum_over_ranks=inputs.sum_over_ranks,
    )


def turn_returns_credit(inputs: CreditInputs, *, gamma: float = 1.0, normalise: Normalise = "joint") -> Tensor:
    """IGPO's credit, `[B, S]`: rewards of all turns of the group, normalised and then summed from each turn on.

    The outcome is paid on the last step. An answer without a step reward of its own has no gain, and is left out of the
    statistics of gains. Explained at `modules.functional.returns.turn_returns`.
    """
    kinds = [[kind == "answer" for kind in kinds] for kinds in inputs.step_kinds_BS]
    answers_BS = torch.tensor(kinds, dtype=torch.bool).view(inputs.step_mask_BS.shape)
    return turn_returns(
        inputs.step_rewards_BS.masked_fill(answers_BS & (inputs.step_rewards_BS == 0), math.nan),
        inputs.step_mask_BS,
        group_size=inputs.group_size,
        gamma=gamma,
        normalise=normalise,
        outcome_B=inputs.outcome_B,
    )


def anchor_return_credit(
    inputs: CreditInputs,
    *,
    gamma: float = 0.95,
    omega: float = 1.0,
    scale: bool = False,
    steps_weigh: bool = False,
    anchor: Literal["state", "last_passages"] = "state",
) -> Tensor:
    """GiGPO's credit, `[B, S]`: the episode's return, and `omega` times that of a step among those from its state.

    The outcome is paid on the last step. A `state` is all passages and claims so far; `last_passages`, the paper's, is
    the set of passages that the last search found. Explained at `modules.functional.returns.anchor_return`.
    """
    return anchor_return(
        _paid_on_last(inputs),
        inputs.step_mask_BS,
        inputs.step_states_BS if anchor == "state" else inputs.step_passages_BS,
        group_size=inputs.group_size,
        gamma=gamma,
        omega=omega,
        scale=scale,
        steps_weigh=steps_weigh,
    )


def reinforce_pp_credit(inputs: CreditInputs, *, kl_weight: float = 0.0, eps: float = 1e-8) -> Tensor:
    """REINFORCE++'s credit, `[B, T]`: a token's reward-to-go, normalised over all tokens of all ranks.

    A step's reward lies on its last token, the outcome on the episode's last, and on each token -`kl_weight` times
    (log-prob it was sampled with - log-prob of the reference): the divergence as a reward. There is no comparison
    within a group. Source: REINFORCE++, arXiv 2501.03262.

    Raises:
        MissingInput: a `kl_weight` without log-probs of a reference.
    """
    returns_BT = _token_rewards(inputs, kl_weight).flip(1).cumsum(dim=1).flip(1)
    known_BT = inputs.trained_BT & returns_BT.isfinite().all(dim=1, keepdim=True)
    return advantages.batch_normalize(returns_BT, known_BT, sum_over_ranks=inputs.sum_over_ranks, eps=eps)


def gae_credit(inputs: CreditInputs, *, gamma: float = 1.0, lam: float = 1.0, kl_weight: float = 0.0) -> Tensor:
    """PPO's credit, `[B, T]`: generalised advantages over policy tokens, from rewards on tokens and a critic's values.

    A step's reward lies on its last policy token, the outcome on the episode's last, and on each token -`kl_weight`
    times (log-prob it was sampled with - log-prob of the reference). The rewards of an episode must all be known.

    Raises:
        MissingInput: there are no values, or a `kl_weight` but no log-probs of a reference.
    """
    known_BT = inputs.trained_BT & inputs.total_B.isfinite()[:, None]
    rewards_BT = _token_rewards(inputs, kl_weight)
    return generalized_advantages(rewards_BT, inputs.critic_values_BT, known_BT, gamma=gamma, lam=lam)[0]


PATH_CREDITS = (leaf_groups_credit, node_values_credit)  # compare all paths of a question, however many there are


def _paid_on_last(inputs: CreditInputs) -> Tensor:
    """`[B, S]`: step rewards, with the outcome added to that of the last step."""
    last_BS = last_steps(inputs.step_mask_BS)
    return torch.where(last_BS, inputs.outcome_B[:, None], 0.0) + inputs.step_rewards_BS


def _scaled_each(inputs: CreditInputs, rewards_BR: Tensor, weights_R: Tensor, scaled: ScaleRewards) -> Tensor:
    return advantages.scaled_rewards(
        rewards_BR,
        weights_R,
        group_size=inputs.group_size,
        over_batch=scaled == "each",
        sum_over_ranks=inputs.sum_over_ranks,
    )


def _token_rewards(inputs: CreditInputs, kl_weight: float) -> Tensor:
    """`[B, T]`: rewards of steps and outcome on the tokens that earned them, less the divergence from the reference."""
    rewards_BS = inputs.step_rewards_BS.masked_fill(~inputs.step_mask_BS, 0.0)
    rewards_BT = token_rewards(rewards_BS, inputs.step_lengths_BS, inputs.outcome_B, inputs.trained_BT)
    if not kl_weight:
        return rewards_BT
    if inputs.reference_logps_BT is None:
        raise MissingInput("credit with a kl_weight needs the log-probs of a reference: give the module one")
    gaps_BT = inputs.old_logps_BT - inputs.reference_logps_BT
    return rewards_BT - kl_weight * gaps_BT.masked_fill(~inputs.trained_BT, 0.0)


def _scored(inputs: CreditInputs) -> Tensor:
    """`[B, S]` bool: the steps of the episodes whose outcome is known."""
    return inputs.step_mask_BS & inputs.outcome_B.isfinite()[:, None]


def _within_kinds(inputs: CreditInputs, mask_BS: Tensor) -> Tensor:
    """`[B, S]`: rewards less the mean of the steps of their kind in the question's episodes."""
    return process_advantages(
        inputs.step_rewards_BS,
        mask_BS,
        group_size=inputs.group_size,
        statistics="kind",
        step_kinds_BS=numbered(inputs.step_kinds_BS, inputs.group_size),
        step_valid_BS=inputs.step_valid_BS,
        scale=False,
    )


def _with_outcome(inputs: CreditInputs, process_BS: Tensor, beta: float) -> Tensor:
    mask_BS, group_size = inputs.step_mask_BS, inputs.group_size
    return advantages.outcome_and_process(inputs.outcome_B, process_BS, mask_BS, group_size=group_size, beta=beta)

"""Inputs of a credit function: rewards, lengths, kinds and log-probs of an iteration's episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


class MissingInput(ValueError):
    """A credit function needs what the training module does not give, such as a critic's values."""


def one_rank(sums: Tensor) -> Tensor:
    """`CreditInputs.sum_over_ranks` of a single rank."""
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditInputs:
    """Inputs of a credit function for B episodes, the `group_size` episodes of a question side by side.

    A step is one of up to S; a token is one of up to T that the policy sampled, in the order of the steps.

    Attributes:
        step_rewards_BS: `[B, S]` float32, NaN where unscored, 0 outside the mask.
        step_mask_BS: `[B, S]` bool, true where an episode has a step that the policy sampled.
        outcome_B: `[B]` float32, NaN where unscored.
        outcomes_BR: `[B, R]` float32, the outcome rewards that `outcome_B` is the weighted sum of; NaN if unscored.
        outcome_weights_R: `[R]` float32, their weights.
        group_size: episodes a question; 1 where a question's episodes are the paths of a tree.
        questions_B: B ids of the questions that the episodes are on.
        step_lengths_BS: `[B, S]` int64, sampled tokens of each step.
        step_kinds_BS: B rows of S names, the protocol's own words; empty beyond the last step.
        step_valid_BS: `[B, S]` bool, false on steps out of format.
        step_turns_BS: B rows of S uids of the turns in which the steps begin; empty beyond the last step. Where two
            episodes are paths of one tree, steps that they share have the same.
        step_states_BS: B rows of S names of the states in which the steps begin, as `envs.search_steps` names them
            apart; empty beyond the last step.
        step_passages_BS: B rows of S names of the passages that the last search before each step found; empty beyond
            the last step.
        step_agents_BS: B rows of S names, the agents that wrote the steps; empty beyond the last step.
        trained_BT: `[B, T]` bool, true on tokens of turns that train; false on a frozen agent's, and beyond the last.
        old_logps_BT: `[B, T]` float32, log-probs that the tokens were sampled with, or what the module computed again
            because the sampler's are another model's.
        values_BT: `[B, T]` float32, a critic's values of the states that the tokens were sampled in; None without a
            critic.
        reference_logps_BT: `[B, T]` float32, log-probs of the reference policy; None without a reference.
        sum_over_ranks: adds a tensor up over all ranks. The B episodes are this rank's own: who needs a statistic of
            all calls it, once, and on every rank.
    """

    step_rewards_BS: Tensor
    step_mask_BS: Tensor
    outcome_B: Tensor
    outcomes_BR: Tensor
    outcome_weights_R: Tensor
    group_size: int
    questions_B: tuple[str, ...]
    step_lengths_BS: Tensor
    step_kinds_BS: tuple[tuple[str, ...], ...]
    step_valid_BS: Tensor
    step_turns_BS: tuple[tuple[str, ...], ...]
    step_states_BS: tuple[tuple[str, ...], ...]
    step_passages_BS: tuple[tuple[str, ...], ...]
    step_agents_BS: tuple[tuple[str, ...], ...]
    trained_BT: Tensor
    old_logps_BT: Tensor
    values_BT: Tensor | None = None
    reference_logps_BT: Tensor | None = None
    sum_over_ranks: Callable[[Tensor], Tensor] = one_rank

    @property
    def total_B(self) -> Tensor:
        """`[B]`: the sum of an episode's rewards; NaN where one is not known."""
        return self.outcome_B + self.step_rewards_BS.masked_fill(~self.step_mask_BS, 0.0).sum(dim=1)

    @property
    def critic_values_BT(self) -> Tensor:
        """`values_BT` of a run with a critic.

        Raises:
            MissingInput: there is none.
        """
        if self.values_BT is None:
            raise MissingInput("credit reads a critic's values: train with modules.ppo:PPO or another module with one")
        return self.values_BT

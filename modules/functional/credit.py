"""Credit functions: from the rewards of an iteration to advantages. A credit function is a component of its module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from modules.functional import advantages
from modules.functional.advantages import Statistics


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
        trained_BT: `[B, T]` bool, true on tokens of turns that train; false on a frozen agent's, and beyond the last.
        old_logps_BT: `[B, T]` float32, log-probs that the tokens were sampled with, or what `Estimates` has for them.
        values_BT: `[B, T]`, a critic's estimates; None without a critic.
        reference_logps_BT: `[B, T]`, log-probs of the reference policy; None where none were computed.
    """

    step_rewards_BS: Tensor
    step_mask_BS: Tensor
    outcome_B: Tensor
    group_size: int
    step_lengths_BS: Tensor | None = None
    step_kinds_BS: tuple[tuple[str, ...], ...] | None = None
    trained_BT: Tensor | None = None
    old_logps_BT: Tensor | None = None
    values_BT: Tensor | None = None
    reference_logps_BT: Tensor | None = None


Credit = Callable[[CreditInputs], Tensor]  # advantages [B, S], the same for all tokens of a step, or [B, T]


def dual_granularity(inputs: CreditInputs, *, beta: float = 0.3, statistics: Statistics = "step") -> Tensor:
    """ProRAG's credit, `[B, S]`: outcome advantage plus `beta` times process advantage.

    `statistics` is explained at `modules.functional.advantages.dual_granularity`. Source: ProRAG Eqs 7 and 8.
    """
    lengths_BS = inputs.step_lengths_BS
    return advantages.dual_granularity(
        inputs.step_rewards_BS,
        inputs.step_mask_BS,
        inputs.outcome_B,
        group_size=inputs.group_size,
        beta=beta,
        statistics=statistics,
        step_lengths_BS=None if lengths_BS is None else lengths_BS.float(),
    )

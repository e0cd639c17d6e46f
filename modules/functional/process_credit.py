"""Credit functions that read more of a step's reward than how it ranks among all steps of its question.

Both add `beta` times a process advantage to the normalised outcome, as `modules.functional.credit:dual_granularity`
does (ProRAG Eq 8). The process advantage is in units of the reward: there is no division by a deviation, so where the
rewards of a question hardly differ they hardly count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from modules.functional.advantages import outcome_and_process
from modules.functional.credit import CreditInputs, MissingInput
from modules.functional.process_advantages import numbered, potential_differences, state_gains


def potential_difference(inputs: CreditInputs, *, beta: float = 0.3) -> Tensor:
    """`[B, S]`: outcome advantage plus `beta` times what the step adds to the episode's potential.

    The potential after a step is its reward less the mean of its kind; explained at
    `modules.functional.process_advantages.potential_differences`.

    Raises:
        MissingInput: there are no kinds of the steps.
    """
    if inputs.step_kinds_BS is None:
        raise MissingInput("potential_difference needs step_kinds_BS")
    if not inputs.step_rewards_BS.numel():
        return torch.zeros_like(inputs.step_rewards_BS)
    kinds_BS = numbered(inputs.step_kinds_BS, inputs.group_size)
    process_BS = potential_differences(
        inputs.step_rewards_BS,
        _scored(inputs),
        kinds_BS,
        group_size=inputs.group_size,
        step_valid_BS=inputs.step_valid_BS,
    )
    return _with_outcome(inputs, process_BS, beta)


def state_gain(inputs: CreditInputs, *, beta: float = 0.3) -> Tensor:
    """`[B, S]`: outcome advantage plus `beta` times what the step is better than the group's others from its state.

    Explained at `modules.functional.process_advantages.state_gains`; what a state is, at `envs.search_steps`.

    Raises:
        MissingInput: there are no kinds or no states of the steps.
    """
    if inputs.step_kinds_BS is None or inputs.step_states_BS is None:
        raise MissingInput("state_gain needs step_kinds_BS and step_states_BS")
    if not inputs.step_rewards_BS.numel():
        return torch.zeros_like(inputs.step_rewards_BS)
    kinds_BS, states_BS = (numbered(x, inputs.group_size) for x in (inputs.step_kinds_BS, inputs.step_states_BS))
    process_BS = state_gains(
        inputs.step_rewards_BS,
        _scored(inputs),
        kinds_BS,
        states_BS,
        group_size=inputs.group_size,
        step_valid_BS=inputs.step_valid_BS,
    )
    return _with_outcome(inputs, process_BS, beta)


def _scored(inputs: CreditInputs) -> Tensor:
    """`[B, S]` bool: the steps of the episodes whose outcome is known."""
    return inputs.step_mask_BS & inputs.outcome_B.isfinite()[:, None]


def _with_outcome(inputs: CreditInputs, process_BS: Tensor, beta: float) -> Tensor:
    return outcome_and_process(
        inputs.outcome_B, process_BS, inputs.step_mask_BS, group_size=inputs.group_size, beta=beta
    )

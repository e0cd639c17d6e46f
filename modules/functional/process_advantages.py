"""Process advantages: what the rewards of a question's steps say of each step, by comparison with other steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from modules.functional.normalization import less_others, normalize_rows

Statistics = Literal["step", "token", "step_index", "kind", "kind_index"]


def process_advantages(
    step_rewards_BS: Tensor,
    step_mask_BS: Tensor,
    *,
    group_size: int,
    statistics: Statistics = "step",
    step_lengths_BS: Tensor | None = None,
    step_kinds_BS: Tensor | None = None,
    step_valid_BS: Tensor | None = None,
    scale: bool = True,
) -> Tensor:
    """(reward - mean) / population std over steps of a question's G episodes, which ones `statistics` says.

    Over all of them, each counted once (`step`, ProRAG Eq 7) or by its policy tokens (`token`, as the released code
    does); separately for each position in the episode (`step_index`), each kind of step (`kind`), or each kind at each
    position (`kind_index`). The first three compare steps of different kinds: where the reward of one kind is lower
    on the average, such as that of answers, the policy learns to avoid that kind.

    With `kind` and `kind_index` a step out of format is of no kind: it is compared with all steps of the question, for
    beside other steps out of format, which are worth as little, it would never be worse.

    Args:
        step_rewards_BS: `[B, S]`; NaN is left out, its advantage is 0.
        step_mask_BS: `[B, S]`, true where an episode has that step.
        step_lengths_BS: `[B, S]` policy tokens of each step; needed by `token`.
        step_kinds_BS: `[B, S]` int64, a number for each kind; needed by `kind` and `kind_index`.
        step_valid_BS: `[B, S]` bool, false where a step is out of format; None: all are in it.
        scale: false does not divide by the std, so that small differences stay small.

    Raises:
        ValueError: lengths or kinds are needed and missing.
    """
    weights_BS = (step_mask_BS.bool() & step_rewards_BS.isfinite()).to(step_rewards_BS.dtype)
    if statistics == "token":
        if step_lengths_BS is None:
            raise ValueError("statistics 'token' needs step_lengths_BS")
        weights_BS = weights_BS * step_lengths_BS
    compared = partial(normalize_rows, correction=0, eps=0.0, scale=scale)
    sets_BS = _sets(statistics, step_mask_BS, step_kinds_BS)
    if step_valid_BS is None or statistics not in ("kind", "kind_index"):
        return by_set(compared, step_rewards_BS, weights_BS, sets_BS, group_size)
    within_BS = by_set(compared, step_rewards_BS, weights_BS * step_valid_BS, sets_BS, group_size)
    among_all_BS = by_set(compared, step_rewards_BS, weights_BS, torch.zeros_like(sets_BS), group_size)
    return torch.where(step_valid_BS, within_BS, among_all_BS)


def potential_differences(
    step_rewards_BS: Tensor,
    step_mask_BS: Tensor,
    step_kinds_BS: Tensor,
    *,
    group_size: int,
    step_valid_BS: Tensor | None = None,
) -> Tensor:
    """What a step adds to the potential of its episode: the potential after the step less that before it, `[B, S]`.

    The potential is the reward less the mean of the steps of that kind in the question's G episodes (of all steps, for
    a step out of format, as in `process_advantages`), and 0 before the first step. So a step is not blamed for errors
    made before it, and where the reward depends on the kind alone every difference is 0. A step has 0 where its own
    reward is NaN or that of the step before it.

    Sources: potentials, Ng, Harada and Russell 1999; differences as process rewards, arXiv 2410.08146.
    """
    mask_BS, unknown_BS = step_mask_BS.bool(), ~step_rewards_BS.isfinite()
    potentials_BS = _within_kinds(step_rewards_BS, mask_BS, step_kinds_BS, step_valid_BS, group_size)
    potentials_BS = potentials_BS.masked_fill(unknown_BS, float("nan"))
    before_B, gains_BS = step_rewards_BS.new_zeros(len(step_rewards_BS)), torch.zeros_like(step_rewards_BS)
    for s in range(step_rewards_BS.shape[1]):
        gains_BS[:, s] = potentials_BS[:, s] - before_B
        before_B = torch.where(mask_BS[:, s], potentials_BS[:, s], before_B)
    return gains_BS.masked_fill(~mask_BS | ~gains_BS.isfinite(), 0.0)


def state_gains(
    step_rewards_BS: Tensor,
    step_mask_BS: Tensor,
    step_kinds_BS: Tensor,
    step_states_BS: Tensor,
    *,
    group_size: int,
    step_valid_BS: Tensor | None = None,
) -> Tensor:
    """What a step is better than the group's other steps from the same state, `[B, S]`.

    Rewards are taken less the mean of the steps of their kind in the question's G episodes (of all steps, for a step
    out of format): an answer and a search from one state are compared by how good they are of their kind. A step from a
    state where no other episode was has 0.

    Source: comparison within states, GiGPO, arXiv 2505.10978.

    Args:
        step_states_BS: `[B, S]` int64, the same number for the steps of a question that begin in the same state.
    """
    known_BS = step_mask_BS.bool() & step_rewards_BS.isfinite()
    deviations_BS = _within_kinds(step_rewards_BS, known_BS, step_kinds_BS, step_valid_BS, group_size)

    def gains(values_RN: Tensor, weights_RN: Tensor) -> Tensor:
        return less_others(values_RN, weights_RN > 0)

    return by_set(gains, deviations_BS, known_BS.to(deviations_BS.dtype), step_states_BS, group_size)


def _within_kinds(
    rewards_BS: Tensor, mask_BS: Tensor, kinds_BS: Tensor, valid_BS: Tensor | None, group_size: int
) -> Tensor:
    """Rewards less the mean of the steps of their kind in the question's episodes."""
    return process_advantages(
        rewards_BS,
        mask_BS,
        group_size=group_size,
        statistics="kind",
        step_kinds_BS=kinds_BS,
        step_valid_BS=valid_BS,
        scale=False,
    )


def numbered(names_BS: Sequence[Sequence[str]], group_size: int) -> Tensor:
    """`[B, S]` int64: within a question, the same number for the same name."""
    rows: list[list[int]] = []
    for start in range(0, len(names_BS), group_size):
        numbers: dict[str, int] = {}
        for names in names_BS[start : start + group_size]:
            rows.append([numbers.setdefault(name, len(numbers)) for name in names])
    return torch.tensor(rows, dtype=torch.long)


def _sets(statistics: Statistics, step_mask_BS: Tensor, step_kinds_BS: Tensor | None) -> Tensor:
    """`[B, S]` int64: steps of a question with the same number are compared with each other."""
    S = step_mask_BS.shape[1]
    places_BS = torch.arange(S).expand(step_mask_BS.shape)
    if statistics == "step_index":
        return places_BS
    if statistics in ("step", "token"):
        return torch.zeros_like(places_BS)
    if step_kinds_BS is None:
        raise ValueError(f"statistics {statistics!r} needs step_kinds_BS")
    kinds_BS = step_kinds_BS.view_as(places_BS)  # of no episodes, names have no places
    return kinds_BS if statistics == "kind" else kinds_BS * S + places_BS


def by_set(
    function: Callable[[Tensor, Tensor], Tensor],
    values_BS: Tensor,
    weights_BS: Tensor,
    sets_BS: Tensor,
    group_size: int,
) -> Tensor:
    """A function of rows, applied to each set of steps of each question, `[B, S]`.

    Args:
        function: from values and weights `[R, N]` to `[R, N]`, which is 0 where a weight is 0.
        sets_BS: int64 from 0 on, the steps of a question that have the same number are a set.
    """
    (B, S), groups = values_BS.shape, len(values_BS) // group_size
    if not values_BS.numel():
        return torch.zeros_like(values_BS)
    values_QN, weights_QN, sets_QN = (x.reshape(groups, group_size * S) for x in (values_BS, weights_BS, sets_BS))
    in_set_QUN = torch.eq(sets_QN[:, None], torch.arange(int(sets_BS.max()) + 1)[:, None])
    values_RN = values_QN[:, None].expand(in_set_QUN.shape).flatten(0, 1)
    weights_RN = (weights_QN[:, None] * in_set_QUN).flatten(0, 1)
    return function(values_RN, weights_RN).reshape(in_set_QUN.shape).sum(dim=1).reshape(B, S)

"""Process advantages: what the rewards of a question's steps say of each step, by comparison with other steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from modules.functional.normalization import normalize_rows

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


def numbered(names_BS: Sequence[Sequence[Hashable]], group_size: int) -> Tensor:
    """`[B, S]` int64: within a question, the same number for the same name."""
    rows: list[list[int]] = []
    for start in range(0, len(names_BS), group_size):
        numbers: dict[Hashable, int] = {}
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

"""What is measured of an iteration's episodes, rewards and advantages. Pure: the caller reduces over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import torch
from torch import Tensor

from common.answers import exact_match
from envs.interfaces import Protocol
from envs.types import Episode, Status
from modules.functional.advantages import no_spread
from modules.rewards.terms import NAN, Scores


def measure(
    episodes: Sequence[Episode], scores: Scores, advantages_BS: Tensor, protocol: Protocol, *, group_size: int
) -> dict[str, Tensor]:
    """The values whose means are logged, by tag; every rank has the same tags in the same order.

    NaN is left out of a mean; how much could not be scored is in `unscored` and `rewards/<name>/unscored`.
    """
    mask_BS = scores.step_mask_BS
    outcome_QG = scores.outcome_B.reshape(-1, group_size)
    process_QN = scores.step_BS.masked_fill(~mask_BS, NAN).reshape(len(outcome_QG), -1)
    values = {
        "reward": scores.outcome_B,
        "reward_std": _std(outcome_QG),
        "step_reward": scores.step_BS[mask_BS],
        "step_reward_std": _std(process_QN),
        "frac_reward_zero_std": no_spread(outcome_QG, outcome_QG.isfinite()).float(),
        "frac_reward_zero_std/process": no_spread(process_QN, process_QN.isfinite()).float(),
        "unscored": scores.outcome_B.isnan(),
    }
    for name, given in scores.breakdown.items():
        given_N = given[mask_BS] if given.dim() == 2 else given
        values[f"rewards/{name}/mean"] = given_N
        values[f"rewards/{name}/std"] = _std(given_N[None])
        values[f"rewards/{name}/unscored"] = given_N.isnan()
        if given.dim() == 2:
            values |= _by_answer(name, given, mask_BS, episodes)
    advantages_N = advantages_BS[mask_BS]
    values["adv/mean"], values["adv/abs"] = advantages_N, advantages_N.abs()
    values["adv/zero_rate"], values["adv/std"] = advantages_N == 0, _std(advantages_N[None])
    sampled = [[turn for turn in episode.turns if turn.finish != "scripted"] for episode in episodes]
    searches_B = _floats(sum(turn.action.kind == "query" for turn in episode.turns) for episode in episodes)
    values["search/count"], values["search/none_rate"] = searches_B, searches_B == 0
    values["search/hits"] = _floats(len(t.hits) for e in episodes for t in e.turns if t.action.kind == "query")
    values["format/valid_rate"] = _floats(step.valid for episode in episodes for step in episode.steps if step.spans)
    values["format/valid_episodes"] = _floats(protocol.valid(episode) for episode in episodes)
    for status in get_args(Status):
        values[f"stop/{status}"] = _floats(episode.status == status for episode in episodes)
    values["completions/mean_length"] = _floats(sum(len(turn.action_ids) for turn in turns) for turns in sampled)
    values["completions/mean_turns"] = _floats(len(turns) for turns in sampled)
    values["completions/clipped_ratio"] = _floats(turn.finish == "length" for turns in sampled for turn in turns)
    return values


def _by_answer(name: str, given_BS: Tensor, mask_BS: Tensor, episodes: Sequence[Episode]) -> dict[str, Tensor]:
    """A step reward in episodes with right and with wrong answers: does it still tell them apart while it is optimised?

    Of valid steps alone: a process reward model gives the others 0 by rule, and most of them are in wrong episodes.
    """
    valid_BS = mask_BS.clone()
    for row, episode in enumerate(episodes):
        for number, step in enumerate(episode.steps):
            valid_BS[row, number] &= step.valid
    right_B = _floats(exact_match(episode.answer, episode.question.answers) for episode in episodes).bool()
    return {
        f"rewards/{name}/right": given_BS[valid_BS & right_B[:, None]],
        f"rewards/{name}/wrong": given_BS[valid_BS & ~right_B[:, None]],
    }


def _floats(values: Iterable[float]) -> Tensor:
    return torch.tensor([float(value) for value in values])


def _std(values_QN: Tensor) -> Tensor:
    """Population standard deviation of what is known in each row, `[Q]`; NaN where nothing is."""
    mean_Q1 = values_QN.nanmean(dim=1, keepdim=True)
    return ((values_QN - mean_Q1) ** 2).nanmean(dim=1).sqrt()

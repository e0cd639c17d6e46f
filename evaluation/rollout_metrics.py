"""Metrics of an iteration's episodes, rewards and advantages. Pure: the caller reduces over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import get_args

import torch
from torch import Tensor

from common.answers import exact_match
from envs.interfaces import AgentFormat, Oracle
from envs.types import Episode, Status
from modules.functional.normalization import no_spread
from modules.rewards.terms import NAN, Scores


def measure(
    episodes: Sequence[Episode],
    scores: Scores,
    advantages_BS: Tensor,
    protocol: AgentFormat,
    *,
    group_size: int,
    oracle: Oracle | None = None,
) -> dict[str, Tensor]:
    """The values whose means are logged, by tag, of B finished episodes, `group_size` of each question in a row.

    NaN is left out of a mean; `unscored` and `rewards/<name>/unscored` are the shares that could not be scored.
    A step or turn that several episodes share, as the paths of a tree do, counts once, and steps that are not trained,
    such as those of a frozen generator, do not count.
    Measures of a level that has no reward are absent, and so is the spread of outcomes in a group of one. Tags and
    their order depend on `group_size` and on the rewards alone (name, level, what they log): all ranks have the same.
    """
    mask_BS = scores.step_mask_BS & _counted(episodes, scores.step_mask_BS.shape[1])
    values: dict[str, Tensor] = {"unscored": scores.outcome_B.isnan()}
    levels = {reward.dim() for reward in scores.breakdown.values()}
    if 1 in levels:
        outcome_QG = scores.outcome_B.reshape(-1, group_size)
        values["reward"] = scores.outcome_B
        if group_size > 1:
            values["reward_std"] = _std(outcome_QG)
            values["frac_reward_zero_std"] = no_spread(outcome_QG, outcome_QG.isfinite()).float()
            if len(scores.outcome_weights) > 1:
                flat = flat_groups(scores, group_size)
                values |= {f"frac_reward_zero_std/{name}": flat_Q for name, flat_Q in flat.items()}
    if 2 in levels:
        process_QN = scores.step_BS.masked_fill(~mask_BS, NAN).reshape(len(episodes) // group_size, -1)
        values["step_reward"], values["step_reward_std"] = scores.step_BS[mask_BS], _std(process_QN)
        values["frac_reward_zero_std/process"] = no_spread(process_QN, process_QN.isfinite()).float()
    for name, reward in scores.breakdown.items():
        reward_N = reward[mask_BS] if reward.dim() == 2 else reward
        values[f"rewards/{name}/mean"] = reward_N
        values[f"rewards/{name}/std"] = _std(reward_N[None])
        values[f"rewards/{name}/unscored"] = reward_N.isnan()
        if reward.dim() == 2:
            values |= _by_outcome(name, reward, episodes, mask_BS)
    values |= {f"rewards/{name}": logged_N for name, logged_N in scores.logged.items()}
    advantages_N = advantages_BS[mask_BS]
    values["adv/mean"], values["adv/abs"] = advantages_N, advantages_N.abs()
    values["adv/zero_rate"], values["adv/std"] = advantages_N == 0, _std(advantages_N[None])
    values["adv/answers"] = advantages_BS[mask_BS & _answers(episodes, mask_BS.shape[1])]
    sampled = [[turn for turn in episode.turns if turn.finish != "scripted"] for episode in episodes]
    turns_once = {turn.uid: turn for turn in chain.from_iterable(sampled)}.values()
    queries = {turn.uid: turn for episode in episodes for turn in episode.turns if turn.action.kind == "query"}
    steps = [(step, bool(mask_BS[b, s])) for b, episode in enumerate(episodes) for s, step in enumerate(episode.steps)]
    searches_B = _floats(sum(turn.action.kind == "query" for turn in episode.turns) for episode in episodes)
    values["search/count"], values["search/none_rate"] = searches_B, searches_B == 0
    values["search/hits"] = _floats(len(turn.hits) for turn in queries.values())
    values["format/valid_rate"] = _floats(step.valid for step, counts in steps if counts)
    values["format/valid_episodes"] = _floats(protocol.valid(episode) for episode in episodes)
    for status in get_args(Status):
        values[f"stop/{status}"] = _floats(episode.status == status for episode in episodes)
    values["completions/mean_length"] = _floats(sum(len(turn.action_ids) for turn in turns) for turns in sampled)
    values["completions/mean_turns"] = _floats(len(turns) for turns in sampled)
    values["completions/clipped_ratio"] = _floats(turn.finish == "length" for turn in turns_once)
    return values if oracle is None else values | _search_truth(episodes, oracle)


def flat_groups(scores: Scores, group_size: int) -> dict[str, Tensor]:
    """`[Q]` for each outcome reward that counts: 1 for a group whose episodes all have the same, else 0."""
    rewards = {name: scores.breakdown[name].reshape(-1, group_size) for name in scores.outcome_weights}
    return {name: no_spread(reward_QG, reward_QG.isfinite()).float() for name, reward_QG in rewards.items()}


def _search_truth(episodes: Sequence[Episode], oracle: Oracle) -> dict[str, Tensor]:
    """The oracle's verdicts on every search and on every statement without a search, where it has one."""
    judged = [oracle.judge(episode) for episode in episodes if episode.status != "error"]
    return {
        "search/needless_rate": _floats(v for judgement in judged for v in judgement.needless if v is not None),
        "search/unfounded_rate": _floats(v for judgement in judged for v in judgement.unfounded if v is not None),
    }


def _by_outcome(name: str, reward_BS: Tensor, episodes: Sequence[Episode], mask_BS: Tensor) -> dict[str, Tensor]:
    """A step reward in right and in wrong episodes: one that is trained against no longer helps when these meet.

    Of steps in format alone: other steps get a fixed reward by rule, and are mostly in wrong episodes.
    """
    in_format_BS = mask_BS.clone()
    for row, episode in enumerate(episodes):
        for number, step in enumerate(episode.steps):
            in_format_BS[row, number] &= step.valid
    right_B = _floats(exact_match(episode.answer, episode.question.answers) for episode in episodes).bool()
    return {
        f"rewards/{name}/right": reward_BS[in_format_BS & right_B[:, None]],
        f"rewards/{name}/wrong": reward_BS[in_format_BS & ~right_B[:, None]],
    }


def _counted(episodes: Sequence[Episode], S: int) -> Tensor:
    """`[B, S]` bool: the steps that are trained, each in the first episode that has it."""
    counted_BS = torch.zeros((len(episodes), S), dtype=torch.bool)
    seen: set[tuple[str, int, int]] = set()
    for row, episode in enumerate(episodes):
        for number, step in enumerate(episode.steps):
            if step.spans and any(episode.turns[turn].trainable for turn, _, _ in step.spans):
                turn, start, end = step.spans[-1]
                place = (episode.turns[turn].uid, start, end)
                counted_BS[row, number] = place not in seen
                seen.add(place)
    return counted_BS


def _answers(episodes: Sequence[Episode], S: int) -> Tensor:
    """`[B, S]` bool: which steps answer. If credit is below 0 there on the average, the policy learns not to stop."""
    kinds = [[step.kind for step in episode.steps] for episode in episodes]
    return torch.tensor([[s < len(row) and row[s] == "answer" for s in range(S)] for row in kinds])


def _floats(values: Iterable[float]) -> Tensor:
    return torch.tensor([float(value) for value in values])


def _std(values_QN: Tensor) -> Tensor:
    """Population standard deviation of each row, `[Q, N]` -> `[Q]`; NaN is left out, a row of NaN alone gives NaN."""
    mean_Q1 = values_QN.nanmean(dim=1, keepdim=True)
    return ((values_QN - mean_Q1) ** 2).nanmean(dim=1).sqrt()

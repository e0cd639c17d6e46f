"""Costs of an iteration: tokens that its rollout and its rewards sampled, groups that were replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from callbacks.over_ranks import counts_over_ranks
from callbacks.scored_groups import ScoredGroups
from common.costs import costs_in, tokens_in
from envs.interfaces import RewardContext
from envs.types import Episode


def own_costs(
    groups: ScoredGroups, group_size: int, *, reward_tokens: int, flat: Sequence[int] | None
) -> dict[str, int]:
    """This rank's costs by tag; `flat` are the groups that are still flat, None where none is replaced."""
    costs = {"tokens/rollout": _tokens(groups.episodes) + _tokens(groups.thrown_away), "tokens/rewards": reward_tokens}
    if flat is not None:
        costs["groups/resampled"] = len(groups.thrown_away) // group_size
        costs["groups/flat"] = len(flat)
        costs["tokens/thrown_away"] = _tokens(groups.thrown_away)
    return costs


def costs_of_ranks(own: dict[str, int], spent: Counter[str], context: RewardContext) -> Counter[str]:
    """Costs of all ranks, with the `cost/` counts of what they `spent`; what several ranks spent alike counts once."""
    alone = {
        query: answer.spent + Counter({"tokens/rewards": tokens_in(answer.spent)})
        for query, answer in context.alone.items()
    }
    return counts_over_ranks(Counter(own) + costs_in(spent + context.counts), alone)


def _tokens(episodes: Sequence[Episode]) -> int:
    """Sampled tokens; those of a turn that several episodes share count once."""
    turns = {turn.uid: turn for episode in episodes for turn in episode.turns}
    return sum(len(turn.action_ids) for turn in turns.values())

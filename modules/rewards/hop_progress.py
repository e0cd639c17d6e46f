"""Progress reward: the share of the needed facts that a step is the first to establish."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import Oracle, RewardContext
from envs.types import Episode
from modules.rewards.search_gain import Match, search_gain


def progress(
    episodes: Sequence[Episode], context: RewardContext, *, oracle: Oracle | None = None, match: Match = "id"
) -> list[Tensor]:
    """`[S]` for each episode: newly settled hops, as a share of all hops; the sum is at most 1.

    A fact that was established before, or is off the chain, is worth 0. Without an oracle, as on real data, it is the
    share of the gold passages that a search is the first to find, by `id` or `title` (`match`); a search is NaN without
    gold passages.
    """
    if oracle is None:
        return search_gain(episodes, context, match=match, scale=1.0, penalty=0.0)
    return [_settled(oracle, episode) for episode in episodes]


def _settled(oracle: Oracle, episode: Episode) -> Tensor:
    """`[S]`: NaN where the oracle has no verdict."""
    judgement = oracle.judge(episode)
    settled_S = torch.tensor([float("nan") if one is None else float(one) for one in judgement.settled])
    hops = settled_S.nansum() + (judgement.open or 0)
    return settled_S / hops.clamp(min=1)

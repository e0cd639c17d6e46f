"""Progress reward without an oracle: claims that a reward model takes for new and needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import RewardContext, StepScorer
from envs.types import Episode


def learned_progress(
    episodes: Sequence[Episode], context: RewardContext, *, scorer: StepScorer, above: float = 0.5
) -> list[Tensor]:
    """`[S]` for each episode: 1 for a claim in format that scores more than `above`, else 0; NaN without a score.

    A score is read as the sigmoid of the scorer's. The scorer learns from labels of claims that establish something new
    and needed (`modules.judges.world_oracle:WorldOracle` with `on_chain: true`). Rounded to 0 or 1, such rewards count
    facts, as `modules.rewards.hop_progress:progress` does, so that `progress_credit` can compare steps from the same
    progress on. Searches and answers are not progress.
    """
    rewards: list[Tensor] = []
    for episode, scores_S in zip(episodes, scorer.score(episodes), strict=True):
        claims = [step.valid and step.kind != "answer" and bool(step.claim) for step in episode.steps]
        claims_S = torch.tensor(claims, dtype=torch.bool, device=scores_S.device)
        found_S = (scores_S.sigmoid() > above).float().masked_fill(scores_S.isnan(), torch.nan)
        rewards.append(found_S.masked_fill(~claims_S, 0.0))
    context.log("claims_paid", torch.cat([torch.zeros(0), *(one.cpu() for one in rewards)]))
    return rewards

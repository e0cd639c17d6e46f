"""Outcome reward: the opinion of a judge of answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.costs import costs_in, counted
from envs.interfaces import AnswerJudge, RewardContext
from envs.types import Episode


def judged_answer(episodes: Sequence[Episode], context: RewardContext, *, judge: AnswerJudge) -> Tensor:
    """`[B]`: 1 where the judge calls the answer right, 0 where wrong, NaN where it gave no verdict.

    It logs the share of answers without a verdict (`unjudged`).
    """
    before = counted(judge)
    verdicts = judge.correct(episodes)
    context.counts.update(costs_in(counted(judge) - before))
    values_B = torch.tensor([float("nan") if verdict is None else float(verdict) for verdict in verdicts])
    context.log("unjudged", values_B.isnan().float())
    return values_B

"""Losses of step scores against labels: each score alone, and scores of one group against each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def label_nll(scores_P: Tensor, labels_P: Tensor) -> Tensor:
    """`[P]`: the negative log-likelihood of labels in [0, 1], the score as log-odds: softplus(s) - label · s.

    With labels 0 and 1 this is the logistic loss; a label between them is the share of right ones (Math-Shepherd,
    arXiv 2312.08935, Eq 2).
    """
    return F.softplus(scores_P) - labels_P * scores_P


def group_pairs(labels_P: Tensor, groups_P: Tensor, *, min_gap: float) -> tuple[Tensor, Tensor]:
    """`[N]` int64 each: positions (better, worse) of all pairs of a group whose labels differ by at least `min_gap`."""
    gap_PP = labels_P[:, None] - labels_P[None, :]
    better, worse = ((gap_PP >= min_gap) & (groups_P[:, None] == groups_P[None, :])).nonzero(as_tuple=True)
    return better, worse


def group_ranking_nll(scores_P: Tensor, labels_P: Tensor, groups_P: Tensor, *, min_gap: float = 0.5) -> Tensor:
    """Sum over groups of (labels of the group) · (mean of -log sigmoid(better - worse) over its pairs), a scalar.

    A pair is two steps of one group whose labels differ by at least `min_gap` > 0, whatever their histories. The mean
    over the pairs of a group times its steps keeps a group of many steps, whose pairs grow with the square of their
    number, from outweighing all others. Source of the loss of a pair: ProRAG Eq 4 (Bradley-Terry).

    Args:
        scores_P: `[P]`.
        labels_P: `[P]`, in [0, 1].
        groups_P: `[P]` int64, the group of each step.
    """
    better_N, worse_N = group_pairs(labels_P, groups_P, min_gap=min_gap)
    if not len(better_N):
        return scores_P.sum() * 0.0
    own_P: Tensor = torch.unique(groups_P, return_inverse=True)[1]
    steps_G = torch.bincount(own_P)
    pairs_G = torch.bincount(own_P[better_N], minlength=len(steps_G)).clamp(min=1)
    weights_N = (steps_G / pairs_G)[own_P[better_N]].to(scores_P.dtype)
    return -(weights_N * F.logsigmoid(scores_P[better_N] - scores_P[worse_N])).sum()


def label_loss(
    scores_P: Tensor,
    labels_P: Tensor,
    groups_P: Tensor,
    *,
    ranking: float,
    pointwise: float,
    min_gap: float = 0.5,
) -> Tensor:
    """`ranking` times `group_ranking_nll` plus `pointwise` times the sum of `label_nll`, to be divided by P."""
    total = scores_P.sum() * 0.0
    if pointwise:
        total = total + pointwise * label_nll(scores_P, labels_P).sum()
    if ranking:
        total = total + ranking * group_ranking_nll(scores_P, labels_P, groups_P, min_gap=min_gap)
    return total

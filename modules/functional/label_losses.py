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


def group_pairs(labels_P: Tensor, groups_P: Tensor, *, min_gap: float) -> tuple[Tensor, Tensor, Tensor]:
    """Positions (better, worse) `[N]` int64 of all pairs of a group whose labels differ by at least `min_gap`.

    With them the weight of each pair, `[N]` float32: the labels of its group over the pairs of its group.
    """
    members: dict[int, list[int]] = {}
    for place, group in enumerate(map(int, groups_P.cpu())):
        members.setdefault(group, []).append(place)
    better: list[Tensor] = [groups_P.new_zeros(0)]
    worse, weights = list(better), [labels_P.new_zeros(0, dtype=torch.float32)]
    for own in members.values():
        own_K = groups_P.new_tensor(own)
        gap_KK = labels_P[own_K][:, None] - labels_P[own_K][None, :]
        first_N, second_N = (gap_KK >= min_gap).nonzero(as_tuple=True)
        better.append(own_K[first_N])
        worse.append(own_K[second_N])
        weights.append(weights[0].new_full((len(first_N),), len(own) / max(len(first_N), 1)))
    return torch.cat(better), torch.cat(worse), torch.cat(weights)


def group_ranking_nll(scores_P: Tensor, labels_P: Tensor, groups_P: Tensor, *, min_gap: float = 0.5) -> Tensor:
    """Sum over groups of (labels of the group) · (mean of -log sigmoid(better - worse) over its pairs), a scalar.

    A pair is two steps of one group whose labels differ by at least `min_gap` > 0, whatever their histories. The mean
    over the pairs of a group times its labels keeps a group of many steps, whose pairs grow with the square of their
    number, from outweighing all others. Source of the loss of a pair: ProRAG Eq 4 (Bradley-Terry).

    Args:
        scores_P: `[P]`.
        labels_P: `[P]`, in [0, 1].
        groups_P: `[P]` int64, the group of each step.
    """
    better_N, worse_N, weights_N = group_pairs(labels_P, groups_P, min_gap=min_gap)
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

"""Features of a step that need no training: the backbone's log-probabilities, its length, its place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from modules.reward_model.logistic import logistic

FEATURES = ("logp_mean", "logp_sum", "logp_min", "tokens", "place")


def step_features(logps_N: Tensor, step_N: Tensor, place_P: Tensor) -> Tensor:
    """`[P, F]` float32, the `FEATURES` of P steps.

    Args:
        logps_N: `[N]`, log-probabilities of the steps' policy tokens.
        step_N: `[N]` int64, the step of each token, in [0, P).
        place_P: `[P]` int64, how many steps of the episode came before.
    """
    zero_P = logps_N.new_zeros(len(place_P), dtype=torch.float32)
    logps_N = logps_N.float()
    tokens_P = zero_P.index_add(0, step_N, torch.ones_like(logps_N))
    sum_P = zero_P.index_add(0, step_N, logps_N)
    least_P = zero_P.scatter_reduce(0, step_N, logps_N, "amin")  # a log-probability is never above 0
    return torch.stack([sum_P / tokens_P.clamp(min=1), sum_P, least_P, tokens_P, place_P.float()], dim=-1)


class FeatureWeights(torch.nn.Module):
    """A linear function of a step's features, with weights and a constant for each kind of step.

    Kinds differ in length, and in how often their steps are right. A step of another kind is given the mean over kinds.
    The weights are fitted once and then fixed: a feature that two siblings share has no gradient but rounding.

    Args:
        kinds: the kinds of steps, K of them.
    """

    weight_KF: Tensor

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self.kinds = tuple(kinds)
        self.register_buffer("weight_KF", torch.zeros(len(self.kinds), len(FEATURES) + 1))

    def forward(self, features_PF: Tensor, kinds: Sequence[str]) -> Tensor:
        """`[P]` float32 of features `[P, F]` of steps of these P kinds."""
        return self.design(features_PF, kinds) @ self.weight_KF.flatten()

    def design(self, features_PF: Tensor, kinds: Sequence[str]) -> Tensor:
        """`[P, K · (F + 1)]` float32: what the weights are of, row by row."""
        rows = [[float(kind == own) for own in self.kinds] for kind in kinds]
        share_PK = features_PF.new_tensor([row if any(row) else [1 / len(row)] * len(row) for row in rows])
        with_constant_PF = torch.cat([features_PF, torch.ones_like(features_PF[:, :1])], dim=-1)
        return (share_PK[:, :, None] * with_constant_PF[:, None, :]).flatten(1)

    def fitted(self, design_ND: Tensor, target_N: Tensor, weight_N: Tensor) -> Tensor:
        """`[K, F + 1]`: the weights of a logistic regression on rows of `design`, or on differences of two of them.

        Args:
            design_ND: `[N, D]`.
            target_N: `[N]`, in [0, 1].
            weight_N: `[N]`; a row of weight 0 only scales the features.
        """
        design = design_ND.double().numpy()
        size = (design**2).sum(axis=0) / (design != 0).sum(axis=0).clip(min=1)
        scale = size.clip(min=1e-12) ** 0.5  # a kind's features are 0 in the rows of other kinds
        weights = logistic(design / scale, target_N.double().numpy(), weight_N.double().numpy()) / scale
        return torch.from_numpy(weights).to(self.weight_KF.dtype).view_as(self.weight_KF)

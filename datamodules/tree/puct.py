"""The arithmetic of the search: PUCT scores of children, back-up of an outcome, and priors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from envs.types import Turn

Prior = Literal["logp_mean", "logp_sum", "uniform", "count"]


def puct_scores(
    value_K: Tensor | Sequence[float],
    prior_K: Tensor | Sequence[float],
    visits_K: Tensor | Sequence[float],
    *,
    c_puct: float,
) -> Tensor:
    """Q + c · prior · sqrt(ΣN) / (1 + N), `[K]` float64, of K siblings.

    Source: ProRAG (arXiv 2601.21912), Eq 2.

    Args:
        value_K: mean backed-up value of each child, 0 where it was never visited.
        prior_K: the policy's probability of each child.
        visits_K: visits of each child.
        c_puct: weight of exploration.
    """
    value_K, prior_K, visits_K = (torch.as_tensor(x, dtype=torch.float64) for x in (value_K, prior_K, visits_K))
    return value_K + c_puct * prior_K * visits_K.sum().sqrt() / (1 + visits_K)


def backup(value: float, visits: int, outcome: float, *, discount: float, steps_to_end: int) -> tuple[float, int]:
    """A node's mean value and visits after one more outcome, discounted by the steps from the node to the end.

    Source: ProRAG (arXiv 2601.21912), Eq 3.
    """
    return (value * visits + discount**steps_to_end * outcome) / (visits + 1), visits + 1


def priors(turns: Sequence[Turn], multiplicities: Sequence[int], kind: Prior) -> list[float]:
    """Probabilities of distinct siblings, which sum to 1.

    `logp_mean` is the softmax of the mean log-probability of a step's sampled tokens, `logp_sum` of their sum, `count`
    the share of the samples that were this step, `uniform` 1 / K. The paper does not say how its prior is computed.
    """
    match kind:
        case "uniform":
            weights = [1.0] * len(turns)
        case "count":
            weights = [float(count) for count in multiplicities]
        case "logp_mean" | "logp_sum":
            sums = [math.fsum(turn.action_logps) for turn in turns]
            lengths = [len(turn.action_logps) if kind == "logp_mean" else 1 for turn in turns]
            logps = [total / max(length, 1) for total, length in zip(sums, lengths, strict=True)]
            weights = [math.exp(logp - max(logps)) for logp in logps]
    return [weight / math.fsum(weights) for weight in weights]
